"""Every error that a person may meet, as one tree.

OpenForgeError            exit code 1: the work itself failed
├── UsageError            2: what was typed or configured is wrong
│   └── ConfigError       2: … in a file; names file, line and key
├── InfraError            3: the machine, a process or a service failed; trying again may help
├── TimeLimitError        4: a time limit was reached
├── CheckError            5: a check ran and found something
└── CancelError           130: its end was asked for from elsewhere, as Ctrl-C does here

A summary says what happened and where; the hint is the next command to run.
"""


class OpenForgeError(Exception):
    """An error with a `summary`, a `hint` (may be empty) and the process `exit_code` it maps to."""

    exit_code = 1

    def __init__(self, summary: str, *, hint: str = "") -> None:
        super().__init__(summary)
        self.summary = summary
        self.hint = hint


class UsageError(OpenForgeError):
    exit_code = 2


class ConfigError(UsageError):
    pass


class InfraError(OpenForgeError):
    exit_code = 3


class TimeLimitError(OpenForgeError):
    exit_code = 4


class CheckError(OpenForgeError):
    exit_code = 5


class CancelError(OpenForgeError):
    exit_code = 130
