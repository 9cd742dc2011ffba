import re
import sys
from pathlib import Path

import pytest

from openforge_tui.screenshots import SHOTS, Shot, main, take

sys.path.insert(0, str(Path(__file__).parents[1] / "openforge" / "store"))

from synthetic import SyntheticRun


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".openforge").mkdir()
    run = SyntheticRun(tmp_path / ".openforge")
    run.rollout(task="fix-mean")
    run.end()
    return tmp_path


async def test_a_picture_shows_the_run_and_needs_nothing_from_elsewhere(project: Path) -> None:
    svg = await take(Shot("runs", "runs"), project)
    assert "r0000000aaa" in svg
    assert re.findall(r"https?://[^\"' ]+", svg) == ["http://www.w3.org/2000/svg"]
    assert "@font-face" not in svg
    assert len(svg) < 30_000


def test_pictures_are_written_by_name(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["screenshots", "--project", str(project), "--to", str(tmp_path / "out"), "runs"])
    assert main() == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "out" / "runs.svg")
    monkeypatch.setattr(sys, "argv", ["screenshots", "nothing"])
    with pytest.raises(SystemExit):
        main()
    assert SHOTS[0].name in capsys.readouterr().err
