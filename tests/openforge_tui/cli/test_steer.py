import pytest


@pytest.mark.parametrize("verb", ["cancel", "pause", "unpause"])
def test_what_does_not_go_on_is_refused_by_name(run, typed, capfd, verb) -> None:
    assert typed(verb, "latest") == 2
    assert f"run {run.run_id} is not under way" in capfd.readouterr().err
    assert typed(verb, "nonsense") == 2
    assert "no run is called 'nonsense'" in capfd.readouterr().err
