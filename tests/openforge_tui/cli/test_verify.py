"""What a person sees of a training run's proof (that of a served policy: test_demo.py)."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.openforge_tui.conftest import Trained
from tests.openforge_tui.test_verify import shift_logprobs
from tests.openforge_tui.test_verify_training import write_run


def test_a_training_run_shows_each_sample_with_its_weights(
    tmp_path: Path, trained: Trained, typed: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / ".openforge", trained, list(trained.samples.values()))
    assert typed("verify", "-o", "csv") == 0
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert lines[0] == "rollout_id,sample_id,tokens,sampled,max_diff,mean_diff,position,versions,problem"
    assert [line.split(",")[0] for line in lines[1:]] == [f"r1.t.react.{number}" for number in range(3)]
    assert lines[3].endswith(',"0,2",')
    assert "verify: 3 samples, 29 sampled tokens from 2 weight versions, 1 sample with two or more" in told.err
    assert "not verifiable: 1 sample of weights 10, not saved" in told.err


def test_a_sample_that_is_wrong_is_exit_code_5(
    tmp_path: Path, trained: Trained, typed: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = trained.samples["2"], replace(shift_logprobs(trained.samples["0+2"]), sample_id="bad")
    write_run(tmp_path / ".openforge", trained, [good, bad], [good.rollout_id])
    assert typed("verify") == 5
    assert "the first is bad: largest difference" in capsys.readouterr().err
    assert typed("verify", "--trained") == 0
