"""A made-up run and a way to type commands, for the tests of the verbs that look at the store."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from openforge_tui.cli.app import main

sys.path.insert(0, str(Path(__file__).parents[2] / "openforge" / "store"))

from synthetic import SyntheticRun

EVIL = "[red]bold?[/red] \x1b[31mred\x1b]0;title\x07 \u202eevil\u202c"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[SyntheticRun]:
    """A project folder with one run: two harnesses, one error, texts that would misbehave on a terminal."""
    store = tmp_path / ".openforge"
    store.mkdir()
    run = SyntheticRun(store)
    run.rollout(sample=0, reward=1.0)
    run.rollout(harness="pi", sample=1, reward=0.0, text=EVIL)
    run.state(f"{run.run_id}.t.codex.0", "error", error_class="sandbox", detail=EVIL)  # type: ignore[arg-type]
    at = {"rollout_id": f"{run.run_id}.t.pi.1", "attempt": 0}
    run.recorder.append("egress", **at, host="example.com", port=443, decision="refuse", rule="proxy-only")
    run.recorder.append("sample.refused", **at, call_ids=["c"], reason="bad_logprob")
    yield run
    run.close()


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Type a command in the project folder; returns its exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return lambda *words: main(list(words))
