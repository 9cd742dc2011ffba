"""The training process: `python -m trainer.main KEY=VALUE …` with veRL's own keys, started by `openforge train`.

veRL's configuration is composed as veRL does it, its trainer of the configured mode is built and run; events go to
standard output, one JSON object on a line that begins with `openforge: `. SIGTERM ends the training at the end of the
step that is under way, with a checkpoint.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Mapping
from typing import Any

import hydra
import orjson
import ray
from omegaconf import DictConfig, OmegaConf, open_dict

from trainer.orchestrator import EVENT, Orchestrator


@hydra.main(  # type: ignore[untyped-decorator]
    config_path="pkg://verl.trainer.config", config_name="ppo_trainer", version_base=None
)
def main(config: DictConfig) -> None:
    """Train to the last step, or to the end of the one under way when asked to stop."""
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config
    from verl.utils.device import auto_set_device

    auto_set_device(config)
    validate_config(config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    runtime_env = get_ppo_ray_runtime_env(config)
    # where the orchestrator is stays out of it, since Ray writes it into its logs; processes of this machine inherit it
    passed = ("TRANSFER_QUEUE_ENABLE", "PYTHONPATH", "VERL_USE_EXTERNAL_MODULES", "VERL_PLATFORM")
    os.environ["TRANSFER_QUEUE_ENABLE"] = "1"
    runtime_env["env_vars"] |= {name: os.environ[name] for name in passed if name in os.environ}
    tell({"event": "starting", "what": "Ray"})
    ray_init = dict(OmegaConf.to_container(config.ray_kwargs.get("ray_init", {}), resolve=True))
    ray.init(**{**ray_init, "runtime_env": {**runtime_env, **(ray_init.get("runtime_env") or {})}})
    _train(config)


def _train(config: DictConfig) -> None:
    import transfer_queue as tq

    from trainer.checkpoints import saved_version
    from trainer.loop import LocalLoops
    from trainer.trainers import TRAINERS

    with open_dict(config):
        config.transfer_queue.enable = True
    OmegaConf.resolve(config)
    orchestrator = _Blocking()
    tq.init(config.transfer_queue)
    tell({"event": "starting", "what": "the trainer and the policy"})
    try:
        trainer = TRAINERS[config.trainer.v1.trainer_mode](config=config)
        trainer.ask, trainer.tell = orchestrator.ask, tell
        signal.signal(signal.SIGTERM, lambda *_: setattr(trainer, "stop_asked", True))
        trainer.init()
        start = {"from_step": trainer.global_steps, "pid": os.getpid()}
        with open_dict(config):
            config.openforge.incarnation = orchestrator.ask("POST", "/trainer", start)["incarnation"]
            config.openforge.from_step = trainer.global_steps
            config.openforge.from_version = saved_version(config.trainer.resume_from_path)
        loops = LocalLoops.create(
            config=config,
            llm_client=trainer.get_llm_client(),
            teacher_client=trainer.get_teacher_client(),
            reward_loop_worker_handles=trainer.get_reward_handles(),
        )
        trainer.fit(loops)
        # What was begun for steps that do not come ends as cancelled, while the policy can still answer it.
        orchestrator.ask("DELETE", "/rollouts")
        tell({"event": "done", "step": trainer.total_training_steps})
    finally:
        tq.close()


class _Blocking:
    """The orchestrator for code that is not asynchronous: one loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="orchestrator", daemon=True).start()
        self._client = self._run(self._connect())

    async def _connect(self) -> Orchestrator:
        return Orchestrator.from_environment()

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return dict(self._run(self._client.ask(method, path, body)))

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def tell(event: Mapping[str, Any]) -> None:
    """One line for `openforge train`, whatever else is printed."""
    sys.stdout.write("\n" + EVENT + orjson.dumps(event, option=orjson.OPT_SERIALIZE_NUMPY).decode() + "\n")
    sys.stdout.flush()


def _check(arguments: list[str]) -> None:
    """A key that veRL does not know would be taken in silence, since [trainer.verl] may add keys."""
    from openforge.errors import ConfigError
    from trainer.check_config import check_keys

    try:
        check_keys([argument for argument in arguments if not argument.startswith("hydra.")])
    except ConfigError as error:
        print(f"{error.summary}\n{error.hint}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    _check(sys.argv[1:])
    main()
