"""Mode 2: one rollout."""

from openforge_tui.screens.view import View


class RolloutScreen(View):
    SCOPE, MODE = "rollout", "runs"

    def __init__(self, rollout_id: str, *, call_id: str | None = None) -> None:
        super().__init__()
        self.rollout_id, self.call_id = rollout_id, call_id
