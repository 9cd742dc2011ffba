"""Judges what an agent left behind: the task's own test.sh in a fresh sandbox without network, after the agent is dead.

The verifier sees the agent's work, an untouched copy of the start files and the task's tests (both read-only), and a
folder for the reward that the agent's code never sees when the verifier runs it through `untrusted`. A verifier that
crashes, hangs or writes nonsense is our failure (class `grader`), never a reward of 0.
"""

import json
import math
import os
import re
import stat
import time
from pathlib import Path
from typing import Any

from cluster.runtimes.base import Exit, Grade, Layout, Limits, Mount, Runner, Spec
from cluster.untrusted import UntrustedCommands
from cluster.worktree import clean_work
from openforge.task import Task

_NUMBER = re.compile(rb"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,2})?\s*")
_UNTRUSTED_S = 30.0
_REWARD_BYTES, _READ_BYTES = 64, 1 << 12
REWARD_FILES = ("reward.txt", "reward.json")
"""Harbor's two forms; the first that is there counts."""


async def grade(runtime: Runner, task: Task, work: Path, orig: Path, log: Path, limits: Limits) -> Grade:
    """Run `task`'s verifier on `work`. `limits.wall_s` is the verifier's own time limit."""
    started_s = time.monotonic()
    folder = runtime.new_folder()
    verifier = folder / "verifier"
    verifier.mkdir()
    runtime.own(verifier)
    try:
        removed = clean_work(work, runtime.layout(folder).work)
        ended, commands, planted = await _run(runtime, task, folder, work, orig, log, limits)
        reward, problem = verdict(ended, *read_reward(verifier))
        details: dict[str, Any] = {"exit_code": ended.code, "untrusted_commands": commands}
        details["removed"] = [*removed, *planted][:20]
        return Grade(reward, problem, details, time.monotonic() - started_s)
    finally:
        runtime.remove_folder(folder)


def read_reward(folder: Path) -> tuple[float | None, str]:
    """The one finite number that the verifier wrote, or None and why not."""
    return choose_reward(*(_read(folder / name) for name in REWARD_FILES))


def choose_reward(text: bytes | str, table: bytes | str) -> tuple[float | None, str]:
    """The reward from the bytes of REWARD_FILES, or why there are none; None and why not."""
    if isinstance(text, str) and isinstance(table, bytes):
        return _parse_table(table)
    if isinstance(text, str):
        return None, text
    if len(text) > _REWARD_BYTES or not _NUMBER.fullmatch(text):
        return None, f"the reward is not one number: {text[:_REWARD_BYTES]!r}"
    return float(text), ""


def _parse_table(data: bytes) -> tuple[float | None, str]:
    """An object of numbers: the one called `reward` counts, or the only one."""
    try:
        table = json.loads(data)
    except ValueError:
        table = None
    if isinstance(table, dict):
        number = next(iter(table.values())) if len(table) == 1 else table.get("reward")
        if isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number):
            return float(number), ""
    return None, f"reward.json has no number that is the reward: {data[:_REWARD_BYTES]!r}"


def _read(path: Path) -> bytes | str:
    """The first bytes of a regular file, or why there are none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return f"no reward was written ({error.strerror})"
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return "the reward is not a regular file"
        return os.read(descriptor, _READ_BYTES)
    finally:
        os.close(descriptor)


async def _run(
    runtime: Runner, task: Task, folder: Path, work: Path, orig: Path, log: Path, limits: Limits
) -> tuple[Exit, int, list[str]]:
    """How the verifier ended, how many commands it did not trust, and what was taken out after those."""
    layout = runtime.layout(folder)
    env = base_env(layout.path, layout.home, layout.temp)
    mounts = (
        Mount(task.tests, layout.tests),
        Mount(orig, layout.orig),
        Mount(folder / "verifier", layout.verifier, writable=True),
    )
    verifier_env = {**env, **verifier_environment(layout)}
    argv = ("bash", f"{layout.tests}/test.sh")
    if runtime.enforced.isolation != "bubblewrap":
        return await runtime.run(Spec(argv, verifier_env, folder, limits, mounts, log=log, work=work)), 0, []
    untrusted_limits = Limits(
        wall_s=min(_UNTRUSTED_S, limits.wall_s / 2),
        cpu_s=int(_UNTRUSTED_S),
        memory_bytes=limits.memory_bytes,
        disk_bytes=limits.disk_bytes,
        open_files=limits.open_files,
        processes=limits.processes,
    )
    async with UntrustedCommands(runtime, folder, work, untrusted_limits, env) as commands:
        verifier_env["PATH"] = f"/opt/openforge/bin:{layout.path}"
        spec = Spec(argv, verifier_env, folder, limits, mounts + commands.mounts(), log=log, work=work)
        ended = await runtime.run(spec)
    return ended, commands.count, commands.removed


def verifier_environment(layout: Layout) -> dict[str, str]:
    """What a verifier is told, beside `base_env`."""
    return {
        "REWARD_FILE": f"{layout.verifier}/reward.txt",
        "TASK_ORIG": layout.orig,
        # A repository that the agent made must not run its hooks in the verifier.
        "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_0": "core.hooksPath",
        "GIT_CONFIG_VALUE_0": "/dev/null",
        "GIT_CONFIG_KEY_1": "core.fsmonitor",
        "GIT_CONFIG_VALUE_1": "false",
        "PYTHONSAFEPATH": "1",  # nor its modules: the work folder is where the verifier stands
    }


def verdict(ended: Exit, reward: float | None, problem: str) -> tuple[float | None, str]:
    """The reward that counts once it is known how the verifier ended, and what was wrong."""
    if ended.reason != "exit":
        return None, f"test.sh: {ended.detail}"
    if reward is None and ended.code:
        return None, f"test.sh ended with {ended.code}; {problem}"
    return reward, problem


def base_env(path: str, home: str, temp: str) -> dict[str, str]:
    """The environment of every sandbox: nothing of this machine's own."""
    return {
        "PATH": path,
        "HOME": home,
        "TMPDIR": temp,
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "TERM": "dumb",
        "USER": "agent",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
