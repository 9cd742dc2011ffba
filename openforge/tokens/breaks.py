"""How a call came to its place in the tree, and the names for what broke a continuation."""

from enum import StrEnum


class Break(StrEnum):
    """Everything but ROOT and APPEND broke a continuation; the values are what SQL sees."""

    ROOT = "root"
    APPEND = "append"
    RETRY = "retry"  # the same prompt again: a sibling, both are kept
    BRANCH = "branch"  # another continuation of an answer that was already continued
    ROLLBACK = "rollback:last-assistant"
    NO_MATCH = "fork:no-match"
    FOREIGN = "fork:foreign-assistant"  # an assistant message where the policy was never asked
    PREFILL = "fork:prefill"  # the last message is the assistant's: it wants to be continued in mid-message
    BRIDGE_REFUSED = "fork:bridge-refused"  # the renderer could not continue the ids exactly
    BRIDGE_TRIMMED = "fork:bridge-trimmed"
    SYSTEM_CHANGED = "fork:system-changed"
    TOOLS_CHANGED = "fork:tools-changed"
    HISTORY_REWRITE = "fork:history-rewrite"

    @property
    def forks(self) -> bool:
        """True when the call starts a new root, so that its input ids are its whole prompt."""
        return self is Break.ROOT or self.value.startswith("fork:")
