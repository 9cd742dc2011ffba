import pytest
from pydantic import ValidationError

from openforge.config.models import Config, Policy, Run, Sandbox, size_bytes


@pytest.mark.parametrize(("text", "size"), [("512Mi", 512 << 20), ("4Gi", 4 << 30), ("1.5Ki", 1536), ("42", 42)])
def test_sizes_are_read_as_kubernetes_writes_them(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["4G", "", "Gi", "-1Gi", "4 Gi"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size"):
        size_bytes(text)


def test_thinking_has_three_states() -> None:
    assert [Policy(enable_thinking=value).enable_thinking for value in (True, False, "default")] == [True, False, None]  # type: ignore[arg-type]


def test_nothing_is_coerced() -> None:
    for table in (
        {"samples": "2"},
        {"samples": True},
        {"samples": 1.5},
        {"tasks": "desk"},
        {"tasks": [1]},
        {"samples": 0},
    ):
        with pytest.raises(ValidationError):
            Run.model_validate(table)
    with pytest.raises(ValidationError):
        Sandbox.model_validate({"memory": "4G"})


def test_a_configuration_cannot_be_changed_once_made() -> None:
    with pytest.raises(ValidationError):
        Config().run.samples = 3  # type: ignore[misc]


def test_it_survives_the_journal() -> None:
    config = Config(run=Run(tasks=("a", "b")), policy=Policy(enable_thinking=None))
    assert Config.model_validate_json(config.model_dump_json()) == config
