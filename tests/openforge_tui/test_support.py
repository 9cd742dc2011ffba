import json
import tarfile
from pathlib import Path

import pytest

from openforge.config import load
from openforge.errors import InfraError
from openforge_tui.support import write_bundle

KEY = "sk-" + "abcdefghijklmnopqrstuvwx"


def test_a_bundle_has_what_a_report_needs_and_no_secret(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OPENFORGE_CACHE", str(tmp_path / "cache"))
    logs = tmp_path / ".openforge" / "runs" / "r0000000aaa" / "logs"
    logs.mkdir(parents=True)
    (logs / "recorder.log").write_text(f"using {KEY}\n")
    (logs / "r0000000aaa.t.react.0.0.log").write_text("what a model wrote")
    names = write_bundle(load(tmp_path), tmp_path / "bundle.tar.gz")
    assert {"versions.txt", "config.json", "doctor.json", "runs.json", "runs/r0000000aaa/recorder.log"} <= set(names)
    with tarfile.open(tmp_path / "bundle.tar.gz") as archive:
        texts = {one.name: archive.extractfile(one).read().decode() for one in archive.getmembers()}  # type: ignore[union-attr]
    everything = "\n".join(texts.values())
    assert KEY not in everything
    assert "what a model wrote" not in everything
    doctor = json.loads(texts["openforge-support/doctor.json"])
    assert {"check", "state", "found", "next"} <= set(doctor[0])


def test_half_a_bundle_is_not_left_behind(tmp_path: Path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "addfile", full)
    with pytest.raises(InfraError, match="No space left"):
        write_bundle(load(tmp_path), tmp_path / "bundle.tar.gz")
    assert not (tmp_path / "bundle.tar.gz").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InfraError, match="nowhere"):
        write_bundle(load(tmp_path), tmp_path / "nowhere" / "bundle.tar.gz")
