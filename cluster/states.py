"""The life of one attempt as data: its states, the moves that are allowed, and whose fault an end was.

Terminal states have no way out: a late report of another end is refused, the first one stays. A new attempt starts a
new life. `failed` is the agent's own doing and is graded; `error` is ours and is never a reward.
"""

from enum import StrEnum

from openforge.errors import OpenForgeError


class State(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    GRADING = "grading"
    DONE = "done"
    FAILED = "failed"
    ERROR = "error"
    CANCELLED = "cancelled"


UNDER_WAY = frozenset({State.STARTING, State.RUNNING, State.GRADING})
_STOPPED = frozenset({State.ERROR, State.CANCELLED})
MOVES: dict[State, frozenset[State]] = {
    State.QUEUED: _STOPPED | {State.STARTING},
    State.STARTING: _STOPPED | {State.RUNNING},
    State.RUNNING: _STOPPED | {State.GRADING},
    State.GRADING: _STOPPED | {State.DONE, State.FAILED},
    State.DONE: frozenset(),
    State.FAILED: frozenset(),
    State.ERROR: frozenset(),
    State.CANCELLED: frozenset(),
}


class ErrorClass(StrEnum):
    """Why an attempt ended as `failed` or `error`. `bug`: an exception that this program did not expect."""

    TIMEOUT_AGENT = "timeout_agent"
    HARNESS_EXIT = "harness_exit"
    AGENT_KILLED = "agent_killed"
    MEMORY = "memory"
    DISK = "disk"
    LIMIT = "limit"

    NO_MODEL_CALLS = "no_model_calls"
    SANDBOX = "sandbox"
    IMAGE = "image"
    SCHEDULE = "schedule"
    EVICTED = "evicted"
    RECORDER = "recorder"
    POLICY = "policy"
    GRADER = "grader"
    JOURNAL = "journal"
    BUG = "bug"


AGENT = frozenset(
    {
        ErrorClass.TIMEOUT_AGENT,
        ErrorClass.HARNESS_EXIT,
        ErrorClass.AGENT_KILLED,
        ErrorClass.MEMORY,
        ErrorClass.DISK,
        ErrorClass.LIMIT,
    }
)
RETRIED = frozenset(ErrorClass) - AGENT - {ErrorClass.JOURNAL}


class AttemptError(OpenForgeError):
    """An end that was not the agent's doing."""

    def __init__(self, error_class: ErrorClass, summary: str, *, hint: str = "") -> None:
        super().__init__(summary, hint=hint)
        self.error_class = error_class


class IllegalMove(OpenForgeError):
    """A report that does not fit the state an attempt is in."""


def is_terminal(state: State) -> bool:
    return not MOVES[state]


def check_move(current: State, new: State) -> None:
    if new not in MOVES[current]:
        raise IllegalMove(f"an attempt that is {current} cannot become {new}")
