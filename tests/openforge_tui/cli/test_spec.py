import json

from openforge_tui.cli.app import VERBS, main
from openforge_tui.cli.spec import EXIT_CODES


def test_every_verb_is_described_with_its_options(capfd) -> None:
    assert main(["--spec"]) == 0
    told = json.loads(capfd.readouterr().out)
    commands = {one["command"]: one for one in told["commands"]}
    assert {name.split()[1] for name in commands} == set(VERBS)
    rollouts = commands["openforge rollouts"]
    assert (
        rollouts["arguments"][0] | {"name": "run", "default": "latest", "required": False} == rollouts["arguments"][0]
    )
    assert {"--filter", "--watch"} <= {flag for option in rollouts["options"] for flag in option["flags"]}
    assert all(one["help"] for one in commands.values())
    assert commands["openforge cancel"]["columns"] == ["rollout_id", "state", "reward", "attempt"]
    assert told["exit_codes"] == {str(code): meaning for code, meaning in EXIT_CODES.items()}
