"""Puts one run together: the policy's address, the recorder's settings, the runtime, the orchestrator.

The configuration says what; this says how on this machine. For `openforge run`, the demo and the making of policies.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.attempt import RolloutSpec
from cluster.http import HttpFace
from cluster.orchestrator import OnEvent, Orchestrator
from cluster.policy_server import Serving, use_policy_server
from cluster.recorder import Recorder
from cluster.recorder_process import RecorderProcess
from cluster.rollout import Rollout
from cluster.runtimes.base import Runtime
from cluster.runtimes.process import ProcessRuntime
from cluster.runtimes.process_sandbox import NO_IMAGE_HINT, no_image
from openforge.cache import cache_dir
from openforge.config.models import Config, Policy, size_bytes
from openforge.errors import OpenForgeError, UsageError
from openforge.harness import harness_roots, load_harness
from openforge.ids import RunId, new_run_id
from openforge.store.compact import compact
from openforge.task import Task, load_tasks

Say = Callable[[str], None]


@dataclass(frozen=True)
class Engine:
    """Where answers come from; `died` is set when it is a process of ours that has ended. `started`: for this run.

    `live`: a trainer's policy, whose addresses are told to the orchestrator (PUT /policies/default) once it is there.
    """

    url: str
    weight_version: str
    died: asyncio.Event
    started: bool = False
    live: bool = False


def live_engine() -> Engine:
    """The policy of a trainer that is still to start: calls wait until it has said where it answers."""
    return Engine("", "0", asyncio.Event(), live=True)


def make_specs(config: Config, project: Path | None = None) -> list[RolloutSpec]:
    """Every task with every harness, `samples` times. Sample n of a task has the same start files in every harness.
    Harnesses of the folder `project` come before ours."""
    _check_place(config)  # before anything is made or started
    _check_policy(config, config.policy.base_url)
    run = config.run
    harnesses = [load_harness(name, harness_roots(project or Path())) for name in dict.fromkeys(run.harnesses)]
    names = [harness.name for harness in harnesses]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UsageError(f"two harnesses are called {', '.join(twice)}", hint="run them in two runs, or rename one")
    tasks = load_tasks(run.tasks)
    check_tasks(config, tasks)
    return [
        RolloutSpec(task, harness, sample, run.seed + sample)
        for sample in range(run.samples)
        for task in tasks
        for harness in harnesses
    ]


@asynccontextmanager
async def engine_for(config: Config, model_dir: Path | None, say: Say) -> AsyncIterator[Engine]:
    """The policy: a server that is there, or a vLLM started for as long as it is used. UsageError, InfraError."""
    _check_place(config)
    _check_policy(config, config.policy.base_url)
    policy = config.policy
    if config.target.kind == "sim":
        from cluster.sim.runtime import scripted_policy

        async with scripted_policy() as url:
            yield Engine(url, "0", asyncio.Event())
        return
    if policy.base_url:
        yield Engine(policy.base_url, "0", asyncio.Event())
        return
    if policy.engine != "vllm":
        raise UsageError(
            f'[policy] engine = "{policy.engine}" needs base_url: where the provider answers',
            hint="openforge config show",
        )
    if model_dir is None:
        raise UsageError(f"no model folder for policy {policy.model!r}", hint="openforge policy list")
    server = await use_policy_server(serving_of(policy, model_dir, say), say)
    try:
        yield Engine(server.url, server.weight_version, server.died, started=not server.adopted)
    finally:
        if await asyncio.shield(server.leave()):
            say("policy: server stopped")


def serving_of(policy: Policy, model_dir: Path, say: Say) -> Serving:
    """What vLLM is to serve. A context longer than the model was made for is cut to what it has, and said."""
    length = policy.max_model_len
    with suppress(OSError, ValueError):
        most = json.loads((model_dir / "config.json").read_bytes()).get("max_position_embeddings")
        if isinstance(most, int) and most < length:
            say(
                f"policy: the context is {most} tokens, all that {model_dir.name} has (policy.max_model_len = {length})"
            )
            length = most
    return Serving(model_dir, policy.served_name, policy.dtype, length)


def check_tasks(config: Config, tasks: Sequence[Task]) -> None:
    """UsageError when the configured place cannot run one of them."""
    for task in tasks:
        if config.target.kind == "local" and task.dockerfile is not None:
            raise UsageError(no_image(task), hint=NO_IMAGE_HINT)


def _check_policy(config: Config, url: str, live: bool = False) -> None:
    """UsageError where the recorder could not reach the policy."""
    if config.target.kind == "kubernetes":
        from cluster.remote_place import check_policy

        check_policy(config.target.name, url, live)


def _check_place(config: Config) -> None:
    if config.sandbox.runtime != "process":
        raise UsageError(f"there is no runtime {config.sandbox.runtime!r}", hint='set [sandbox] runtime = "process"')


def recorder_settings(
    config: Config, run_id: RunId, run_dir: Path, engine: Engine, model_dir: Path | None
) -> dict[str, Any]:
    """What a recorder of this run is told, but for its secret. UsageError when the provider's key is not there."""
    policy = config.policy
    api_key = ""
    if policy.api_key_env:
        api_key = os.environ.get(policy.api_key_env, "")
        if not api_key:
            raise UsageError(f"the variable {policy.api_key_env} is empty", hint=f"export {policy.api_key_env}=…")
    if engine.live and config.run.mode != "train":
        raise UsageError(f'a trainer needs token ids, and [run] mode is "{config.run.mode}"', hint='set mode = "train"')
    train = engine.live or (policy.engine == "vllm" and config.run.mode == "train")
    kind = "trainer" if engine.live else "vllm" if train else "openai"
    tokenizer = Path(policy.tokenizer).expanduser() if policy.tokenizer else None
    return {
        "run_id": run_id,
        "run_dir": str(run_dir),
        "mode": "train" if train else "record",
        "engine": {
            "kind": kind,
            "url": engine.url,
            "model": policy.served_name if engine.live or policy.engine == "vllm" else policy.model,
            "api_key": api_key,
            "weight_version": engine.weight_version,
        },
        "model_dir": str(tokenizer or model_dir) if tokenizer or model_dir else None,
        "enable_thinking": policy.enable_thinking,
        "sampling": policy.sampling.model_dump(),
        "max_model_len": policy.max_model_len,
        "keep_alive_s": config.recorder.keep_alive_s,
        "max_body_bytes": size_bytes(config.recorder.max_body),
        "durability": config.recorder.durability,
        "ca_dir": str(cache_dir() / "ca"),
    }


def make_runtime(
    config: Config, run_id: RunId, say: Say, *, project: Path | None = None, keep_start_files: int = 64
) -> tuple[Runtime, str]:
    """Where rollouts run, and at which address of this machine they look for the recorder; at none when it runs in
    the cluster."""
    _check_place(config)
    if config.target.kind == "local":
        return ProcessRuntime(config.sandbox.isolation, keep_start_files), "127.0.0.1"
    # with the Kubernetes client, which takes half a second to import
    if config.target.kind == "sim":
        from cluster.sim.runtime import simulated_runtime

        return simulated_runtime(config, run_id, project or Path(), say)
    if config.target.kind == "kubernetes":
        from cluster.remote_place import remote_runtime

        return remote_runtime(config, run_id, say), ""
    from cluster.kind_place import kind_runtime

    return kind_runtime(config, run_id, say)


def _new_recorder(
    runtime: Runtime, config: Config, settings: dict[str, Any], logs: Path, say: Say
) -> Callable[[int], Recorder]:
    """What makes the recorders of a shard: processes here, or pods beside its rollouts."""

    def log_of(shard: int) -> Path:
        return logs / (f"recorder-{shard}.log" if shard else "recorder.log")

    if config.target.kind != "kubernetes":
        return lambda shard: RecorderProcess(settings, log_of(shard))
    from cluster.remote_place import recorders_of
    from cluster.runtimes.kubernetes import KubernetesRuntime

    assert isinstance(runtime, KubernetesRuntime)
    return recorders_of(runtime, config, settings, log_of, say)


@asynccontextmanager
async def orchestrate(
    config: Config,
    store_root: Path,
    engine: Engine,
    *,
    model_dir: Path | None = None,
    run_id: RunId | None = None,
    project: Path | None = None,
    say: Say = lambda text: None,
    on_event: OnEvent = lambda rollout: None,
) -> AsyncIterator[Orchestrator]:
    """An orchestrator that is ready for rollouts; leaving it ends everything it started.

    `run_id` of a run that there is already: it is taken up again. `project`: the folder whose harnesses come first.
    """
    _check_place(config)
    _check_policy(config, engine.url, engine.live)
    name = run_id or new_run_id()
    run_dir = store_root / "runs" / name
    settings = recorder_settings(config, name, run_dir, engine, model_dir)
    runtime, host = make_runtime(config, name, say, project=project)
    settings["host"] = host
    if runtime.enforced.isolation == "advisory":
        say(f"sandbox: no isolation, rollouts can read your files and reach the network ({runtime.enforced.why})")
    policy = {"model": config.policy.model, "url": engine.url, "weight_version": engine.weight_version}
    async with Orchestrator(
        config,
        name,
        run_dir,
        runtime,
        _new_recorder(runtime, config, settings, run_dir / "logs", say),
        policy_died=engine.died,
        policy=policy,
        on_event=on_event,
        say=say,
    ) as orchestrator:
        async with HttpFace(orchestrator, harness_roots(project or Path())):
            yield orchestrator
    try:  # readers find the same rows either way, faster in Parquet; what is left undone here the next reader can do
        await asyncio.to_thread(compact, run_dir)
    except (OpenForgeError, OSError) as error:
        say(f"the run's segments stay as they are: {error}")


async def run_rollouts(
    config: Config,
    store_root: Path,
    specs: Sequence[RolloutSpec],
    *,
    model_dir: Path | None = None,
    engine: Engine | None = None,
    run_id: RunId | None = None,
    project: Path | None = None,
    say: Say = lambda text: None,
    on_event: OnEvent = lambda rollout: None,
) -> list[Rollout]:
    """Run `specs` from nothing to the end of the run. `engine`: use this one and start none."""
    options: dict[str, Any] = {"model_dir": model_dir, "run_id": run_id, "project": project}
    options |= {"say": say, "on_event": on_event}
    if engine is not None:
        async with orchestrate(config, store_root, engine, **options) as orchestrator:
            return await orchestrator.run_all(specs)
    async with engine_for(config, model_dir, say) as started:
        async with orchestrate(config, store_root, started, **options) as orchestrator:
            return await orchestrator.run_all(specs)
