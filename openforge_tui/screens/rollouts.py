"""Mode 2: the rollouts of a run."""

from openforge_tui.screens.view import View


class RolloutsScreen(View):
    SCOPE, MODE = "rollouts", "runs"

    def __init__(self, run_id: str) -> None:
        super().__init__()
        self.run_id = run_id
