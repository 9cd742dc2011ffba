"""One tree: whatever is raised maps to an exit code that scripts can rely on."""

import pytest

from openforge import errors
from openforge.journal.records import JournalError, RecordError


@pytest.mark.parametrize(
    ("kind", "exit_code"),
    [
        (errors.OpenForgeError, 1),
        (errors.UsageError, 2),
        (errors.ConfigError, 2),
        (errors.InfraError, 3),
        (errors.TimeLimitError, 4),
        (errors.CheckError, 5),
        (JournalError, 3),
        (RecordError, 2),
    ],
)
def test_each_error_carries_summary_hint_and_exit_code(kind: type[errors.OpenForgeError], exit_code: int) -> None:
    error = kind("it broke", hint="do this")
    assert (str(error), error.summary, error.hint, error.exit_code) == ("it broke", "it broke", "do this", exit_code)
    assert isinstance(error, errors.OpenForgeError)
    assert kind("it broke").hint == ""
