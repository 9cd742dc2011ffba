import pytest

from openforge_tui.cli.progress import progress


def test_each_phase_counts_its_own_steps(capfd: pytest.CaptureFixture[str]) -> None:
    with progress("demonstrations", 2) as shown:
        shown.step("one")
        shown.phase("teaching", 240)
        shown.step("loss 0.5", 20)
    assert capfd.readouterr().err.splitlines() == ["demonstrations 1/2: one", "teaching 20/240: loss 0.5"]
