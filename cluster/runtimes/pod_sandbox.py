"""One rollout in its pod: start files, the harness, the verifier, each a command that PID 1 of a container runs.

A stream to a command may be cut at any moment (a restarted API server, a proxy between, a kubelet that hangs): it is
followed again from where it was cut, and its pod's end is known from the watch.
"""

import asyncio
import base64
import hashlib
import io
import json
import os
import tarfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from cluster.grading import REWARD_FILES, base_env, choose_reward, verdict, verifier_environment
from cluster.kube import Executed, Kube, KubeError, PodWatch
from cluster.runtimes import pod_state
from cluster.runtimes.base import Exit, Grade, Layout, Order, Reason
from cluster.runtimes.pod_spec import AGENT, KEEPER, PROGRAM
from cluster.states import AttemptError, ErrorClass
from cluster.workspace import SETUP_S
from openforge.config.models import size_bytes
from openforge.errors import InfraError
from openforge.harness import Launch

_GATE_S, _AWAY_S, _REFUSED_S, _UNTRUSTED_S = 30.0, 120.0, 10.0, 30.0
_LOG_CAP = 4 << 20


class PodSandbox:
    """See `cluster.runtimes.base.Sandbox`."""

    def __init__(
        self,
        kube: Kube,
        watch: PodWatch,
        order: Order,
        pod: str,
        uid: str,
        layout: Layout,
        image_env: Mapping[str, str],
    ) -> None:
        self._kube, self._watch = kube, watch
        self._order, self._pod, self._uid = order, pod, uid
        self.layout, self._image_env = layout, image_env
        self.gate: dict[str, Any] = {}
        self._lost: AttemptError | None = None  # what the agent brought its container or the pod down by
        self._left = _LOG_CAP

    async def prepare(self, forbidden: list[tuple[str, int]], needed: list[tuple[str, int]]) -> None:
        """Wait until the walls stand, and make the start files meanwhile. AttemptError."""
        asked = {"forbidden": forbidden, "needed": needed, "patience_s": _GATE_S}
        gate, setup = await asyncio.gather(self._word(AGENT, "ready", json.dumps(asked)), self._set_up())
        self.gate = json.loads(gate)
        if self.gate["open"]:
            told = (
                f"pod {self._pod} reaches {', '.join(self.gate['open'])}: this cluster does not enforce NetworkPolicy"
            )
            raise AttemptError(ErrorClass.SANDBOX, told, hint="openforge up")
        if self.gate["closed"]:
            told = f"pod {self._pod} does not reach the recorder at {', '.join(self.gate['closed'])}"
            raise AttemptError(ErrorClass.SANDBOX, told, hint="is a firewall between the cluster and this machine?")
        if setup is not None and setup["code"] != 0:
            raise InfraError(f"setup of {self._order.task.ref} failed with {setup['code']}; see {self._order.log}")

    async def run(self, launch: Launch, env: Mapping[str, str], ca: Path) -> Exit:
        layout, order = self.layout, self._order
        files = {f"{layout.home}/{path}": text.encode() for path, text in launch.files.items()}
        files[layout.ca] = await asyncio.to_thread(ca.read_bytes)
        argv = launch.argv
        if order.task.dockerfile is not None and argv[0] == "python3":
            argv = (layout.python, *argv[1:])  # ours: the task's image may have none, or an old one
        plan = {
            "id": "harness",
            "argv": argv,
            "env": {**self._image_env, **env},
            "cwd": layout.work,
            "wall_s": order.wall_s,
            "strict": True,
            "limits": self._limits(),
            "disk_bytes": size_bytes(order.settings.disk),
            "folders": [layout.work, layout.home, layout.temp],
        }
        began = time.monotonic()
        try:
            status = await self._command(AGENT, plan, files)
        except AttemptError as error:
            if error.error_class not in (ErrorClass.MEMORY, ErrorClass.DISK):
                raise
            self._lost = error
            return Exit(cast(Reason, str(error.error_class)), None, error.summary, time.monotonic() - began)
        return _exit(status, order.wall_s)

    async def fingerprint(self) -> str:
        return (await self._word(KEEPER, "fingerprint", self.layout.orig)).strip()

    async def grade(self) -> Grade:
        """An agent that took its whole pod down left no work to judge, and earns nothing."""
        if self._lost is not None and self._lost.error_class is ErrorClass.DISK:
            return Grade(0.0, "", {"lost": self._lost.summary}, 0.0)
        began = time.monotonic()
        order, layout = self._order, self.layout
        env = self._base_env()
        untrusted_s = min(_UNTRUSTED_S, order.task.verifier_timeout_s / 2)
        untrusted = {"env": env, "wall_s": untrusted_s, "limits": self._limits()}
        if self._lost is None:  # else its container is gone, and what is not trusted fails
            await self._word(AGENT, "untrusted", json.dumps(untrusted))
        removed, rewards = f"{layout.temp}/removed.json", [f"{layout.verifier}/{name}" for name in REWARD_FILES]
        plan = {
            "id": "verifier",
            "argv": [*PROGRAM, "verify", f"{layout.tests}/test.sh", layout.work, removed],
            "env": {**env, **verifier_environment(layout)},
            "cwd": layout.work,
            "wall_s": order.task.verifier_timeout_s,
            "strict": False,
            "read": [*rewards, removed],
        }
        status = await self._command(KEEPER, plan, _tree(order.task.tests, layout.tests))
        ended = _exit(status, order.task.verifier_timeout_s)
        read = [status["files"][path] for path in rewards]
        reward, problem = choose_reward(*(_decoded(file) if "data" in file else file["problem"] for file in read))
        reward, problem = verdict(ended, reward, problem)
        details: dict[str, Any] = {"exit_code": ended.code, "gate": self.gate}
        details["removed"] = json.loads(_decoded(status["files"][removed]) or b"[]")
        return Grade(reward, problem, details, time.monotonic() - began)

    async def _set_up(self) -> dict[str, Any] | None:
        """Make the start files where the agent does not look, and keep the untouched copy for the verifier."""
        task, layout = self._order.task, self.layout
        if task.setup is None and task.dockerfile is None:
            return None
        script = f"/opt/task/{task.setup.name}" if task.setup else ""
        skills = [[skill, f"{self._order.harness.spec.skills.dir}/{Path(skill).name}"] for skill in task.skills]
        plan = {
            "id": "setup",
            "argv": [*PROGRAM, "set-up", script, layout.work, layout.orig, json.dumps(skills)],
            "env": {**self._base_env(), "OPENFORGE_SEED": str(self._order.seed)},
            "cwd": layout.work,
            "wall_s": SETUP_S,
            "strict": False,
        }
        files = _tree(task.setup.parent, "/opt/task") if task.setup else {}
        return await self._command(KEEPER, plan, files)

    def _base_env(self) -> dict[str, str]:
        layout = self.layout
        return {**self._image_env, **base_env(layout.path, layout.home, layout.temp)}

    def _limits(self) -> dict[str, int]:
        settings = self._order.settings
        return {"RLIMIT_NOFILE": settings.open_files, "RLIMIT_CPU": settings.cpu_seconds, "RLIMIT_CORE": 0}

    async def _command(self, container: str, plan: dict[str, Any], files: Mapping[str, bytes]) -> dict[str, Any]:
        """Run a command to its end, however often the stream to it is cut. AttemptError when its pod ends first."""
        data = await asyncio.to_thread(_packed, plan, files)
        came, tried, end_s = 0, 0, 0.0

        def take(output: bytes) -> None:
            nonlocal came
            came += len(output)
            self._keep(output)

        ended = asyncio.create_task(self._over(container))
        try:
            while True:
                words = ("run", str(len(data)), hashlib.sha256(data).hexdigest())
                if tried:
                    words = ("attach", plan["id"], str(came))
                try:
                    told = await _first(self._execute(container, words, b"" if tried else data, take), ended)
                    if status := _status(told):
                        return status
                    if tried and told.code == 0:
                        tried = 0  # PID 1 knows no such command: its start never came through
                        continue
                    problem = told.error.decode(errors="replace")[-300:]
                except (KubeError, OSError) as error:
                    problem = str(error)
                now = time.monotonic()
                if tried == 0:
                    end_s = now + _AWAY_S
                elif now > end_s:
                    raise AttemptError(
                        ErrorClass.SANDBOX, f"pod {self._pod}: {plan['id']} cannot be followed: {problem}"
                    )
                elif tried > 1:
                    await _first(asyncio.sleep(min(2.0, 0.1 * 2**tried)), ended)
                tried += 1
        finally:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)

    async def _word(self, container: str, *words: str) -> str:
        """Ask the pod's agent something short; its output. AttemptError, InfraError."""
        return await self._while_alive(container, self._ask(container, words))

    async def _ask(self, container: str, words: tuple[str, ...]) -> str:
        """An API server that is away is waited for. A refusal is asked again, for less long: one that has just
        come back refuses what it does not know yet."""
        said: list[bytes] = []
        end_s, refused_s = time.monotonic() + _AWAY_S, 0.0
        while True:
            said.clear()
            try:
                told = await self._execute(container, words, b"", said.append)
                if told.code == 0:
                    return b"".join(said).decode()
                refused = told.code is not None
                problem = told.error.decode(errors="replace")[-300:]
            except (KubeError, OSError) as error:
                refused = isinstance(error, KubeError) and 400 <= error.status < 500
                problem = str(error)
            now = time.monotonic()
            refused_s = (refused_s or now) if refused else 0.0
            if now > end_s or (refused and now > refused_s + _REFUSED_S):
                told_by = f"the agent of pod {self._pod}/{container} does not answer: {problem}"
                raise AttemptError(ErrorClass.SANDBOX, told_by)
            await asyncio.sleep(0.3)

    async def _execute(
        self, container: str, words: tuple[str, ...], stdin: bytes, on_output: Callable[[bytes], None]
    ) -> Executed:
        return await self._kube.execute(self._pod, container, (*PROGRAM, *words), stdin, on_output)

    async def _while_alive[T](self, container: str, work: Awaitable[T]) -> T:
        """What `work` comes to. AttemptError when the container ends first."""
        ended = asyncio.create_task(self._over(container))
        try:
            return await _first(work, ended)
        finally:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)

    async def _over(self, container: str) -> None:
        """Return never; AttemptError once the pod has ended, been replaced or lost this container."""
        pod = await self._watch.until(self._pod, lambda pod: pod_state.ended(pod, self._uid, container) is not None)
        error_class, why = cast(tuple[ErrorClass, str], pod_state.ended(pod, self._uid, container))
        raise AttemptError(error_class, f"pod {self._pod}: {why}")

    def _keep(self, output: bytes) -> None:
        if self._left <= 0:
            return
        self._order.log.parent.mkdir(parents=True, exist_ok=True)
        with self._order.log.open("ab") as file:
            file.write(output[: self._left])
        self._left -= len(output)


async def _first[T](work: Awaitable[T], ended: "asyncio.Task[None]") -> T:
    """What `work` comes to, unless `ended` raises first."""
    working = asyncio.ensure_future(work)
    try:
        await asyncio.wait({working, ended}, return_when=asyncio.FIRST_COMPLETED)
        if working.done() and not working.cancelled() and working.exception() is None:
            return working.result()
        if ended.done():
            ended.result()
        return await working
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


def _status(told: Executed) -> dict[str, Any] | None:
    """The last thing that PID 1 said on the error stream."""
    with suppress(ValueError):
        status = json.loads(told.error)
        if isinstance(status, dict) and "reason" in status:
            return status
    return None


def _exit(status: Mapping[str, Any], wall_s: float) -> Exit:
    reason: Reason = status["reason"]
    details = {
        "time": f"no end after {wall_s:g} s",
        "memory": "over its memory limit",
        "disk": "over its disk limit",
        "signal": f"ended by signal {status['signal']}",
    }
    return Exit(reason, status["code"], details.get(reason, ""), status["duration_s"], status["cpu_s"])


def _decoded(read: Mapping[str, Any]) -> bytes:
    return base64.b64decode(read.get("data", ""))


def _tree(folder: Path, target: str) -> dict[str, bytes]:
    return {f"{target}/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _packed(plan: Mapping[str, Any], files: Mapping[str, bytes]) -> bytes:
    """A tar of the plan and the files, each readable by all and as executable as scripts must be."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in {"plan.json": json.dumps(plan).encode(), **files}.items():
            entry = tarfile.TarInfo(os.fspath(name).lstrip("/"))
            entry.size, entry.mode, entry.mtime = len(data), 0o755 if data[:2] == b"#!" else 0o644, int(time.time())
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
