"""PID 1 of a rollout's container and the words that talk to it, in a PID name space as a container has it."""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest

from cluster.images import _SOURCES
from cluster.runtimes.pod_sandbox import _packed

ROOT = Path(__file__).resolve().parents[3]
RUNTIMES = "/opt/openforge/agent/cluster/runtimes"
pytestmark = pytest.mark.contract


class Container:
    """A bubblewrap sandbox whose PID 1 is the agent; words are run in it by nsenter, as a kubelet's exec does."""

    def __init__(self, root: Path) -> None:
        agent = root / "agent"
        for name in _SOURCES:
            (agent / name).parent.mkdir(parents=True, exist_ok=True)
            (agent / name).write_bytes((ROOT / name).read_bytes())
        self.work = root / "work"
        folders = {"/app": self.work, "/run/openforge": root / "run", "/orig": root / "orig", "/tmp": root / "tmp"}
        python = Path(os.path.realpath(sys.executable))
        argv = ["bwrap", "--unshare-pid", "--as-pid-1", "--unshare-ipc", "--die-with-parent", "--info-fd", "1"]
        for place in ("/usr", "/etc", "/bin", "/lib", "/lib64"):
            argv += ["--ro-bind", place, place]
        argv += [
            "--ro-bind",
            str(python.parents[1]),
            str(python.parents[1]),
            "--ro-bind",
            str(agent),
            "/opt/openforge/agent",
        ]
        for inside, outside in folders.items():
            outside.mkdir()
            argv += ["--bind", str(outside), inside]
        argv += ["--dev", "/dev", "--proc", "/proc", "--clearenv"]
        self.python = str(python)
        argv += [self.python, "-I", f"{RUNTIMES}/pod_agent.py"]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.pid = json.loads(b"".join(iter(self.process.stdout.readline, b"}\n")) + b"}")["child-pid"]
        end = time.monotonic() + 20
        while not (root / "run" / "agent.sock").exists():
            assert time.monotonic() < end
            time.sleep(0.02)

    def start(self, *words: str, stdin: bytes = b"") -> "subprocess.Popen[bytes]":
        argv = ["nsenter", "--target", str(self.pid), "--mount", "--pid", self.python, "-I", f"{RUNTIMES}/pod_words.py"]
        pipe = subprocess.PIPE
        process = subprocess.Popen([*argv, *words], stdin=pipe, stdout=pipe, stderr=pipe, cwd="/")
        assert process.stdin is not None
        process.stdin.write(stdin)
        process.stdin.flush()
        return process

    def word(self, *words: str, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
        out, err = (process := self.start(*words, stdin=stdin)).communicate(timeout=60)
        return process.returncode, out, err

    def run(self, script: str, files: dict[str, bytes] | None = None, **plan: Any) -> tuple[int, bytes, Any]:
        data = packed(script, files or {}, **plan)
        code, out, err = self.word("run", str(len(data)), hashlib.sha256(data).hexdigest(), stdin=data)
        return code, out, json.loads(err) if err else None

    def attach(self, name: str = "x", offset: int = 0) -> tuple[bytes, Any]:
        for _ in range(20):  # what asks while the rest is being killed is killed with it, and asks again
            code, out, err = self.word("attach", name, str(offset))
            if code not in (-9, 137):
                break
        assert code == 0
        return out, json.loads(err)

    def inside(self) -> int:
        """How many processes there are but PID 1."""
        listed = subprocess.run(
            ["nsenter", "--target", str(self.pid), "--mount", "--pid", "ls", "/proc"], capture_output=True
        )
        return sum(name.isdigit() for name in listed.stdout.split()) - 2  # `ls` itself


def packed(script: str, files: dict[str, bytes], **plan: Any) -> bytes:
    env = {"PATH": "/usr/bin:/bin"}
    told = {"id": "x", "argv": ["bash", "-c", script], "env": env, "cwd": "/app", "wall_s": 20.0, "strict": False}
    return _packed({**told, **plan}, files)


@pytest.fixture
def container(tmp_path: Path, isolated: None) -> Iterator[Container]:
    if os.geteuid() != 0:
        pytest.skip("entering a container's name spaces takes root")
    made = Container(tmp_path)
    yield made
    made.process.kill()
    made.process.wait()


def test_a_command_with_its_files_its_output_and_its_end(container: Container) -> None:
    files = {"/app/a b.txt": b"hello", "/app/deep/run.sh": b"#!/bin/sh\necho ran\n"}
    code, out, status = container.run(
        "cat 'a b.txt'; deep/run.sh; echo err >&2; exit 7", files, read=["/app/a b.txt", "/nope"]
    )
    assert (code, out) == (0, b"helloran\nerr\n")
    assert (status["reason"], status["code"]) == ("exit", 7)
    assert status["files"] == {
        "/app/a b.txt": {"data": "aGVsbG8="},
        "/nope": {"problem": "no reward was written (No such file or directory)"},
    }


def test_k14_k28_arguments_arrive_as_they_are(container: Container) -> None:
    odd = ['- x: "y"', "two\nlines", "", "a  b", "$HOME `id` ä"]
    _, out, _ = container.run("", argv=["printf", "%s|", *odd])
    assert out.decode() == "".join(f"{one}|" for one in odd)


def test_a_command_that_does_not_exist_says_so(container: Container) -> None:
    _, out, status = container.run("", argv=["no-such-program"])
    assert (status["reason"], status["code"]) == ("exit", 127)
    assert b"cannot start no-such-program" in out


def test_k08_what_was_cut_off_on_the_way_in_is_not_begun(container: Container) -> None:
    data = packed("echo ran > /app/ran", {})
    for size, digest in ((len(data), "0" * 64), (len(data) + 1, hashlib.sha256(data).hexdigest())):
        process = container.start("run", str(size), digest, stdin=data)
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out) == (1, b"")
        assert b"cut off" in err
    assert not (container.work / "ran").exists()
    assert container.attach() == (b"", None)


def test_a_stream_that_was_cut_is_followed_from_its_byte_and_the_command_went_on(container: Container) -> None:
    data = packed("echo one; sleep 1; echo two; exit 3", {})
    process = container.start("run", str(len(data)), hashlib.sha256(data).hexdigest(), stdin=data)
    assert process.stdout is not None
    assert process.stdout.readline() == b"one\n"
    process.kill()
    process.communicate()
    out, status = container.attach(offset=4)
    assert (out, status["code"]) == (b"two\n", 3)
    assert container.attach(offset=0)[0] == b"one\ntwo\n"  # and again, from anywhere
    again = container.run("echo other")  # the same name is the same command
    assert again[1] == b"one\ntwo\n"


def test_strict_nothing_outlives_the_command_and_its_end_is_told_by_pid_1(container: Container) -> None:
    script = "for i in 1 2 3; do (trap '' TERM HUP; setsid sleep 300) & done; sleep 0.3; echo done"
    code, _, status = container.run(script, strict=True)
    assert (code, status) == (-9, None) or code == 137  # who asked was killed with the rest
    out, status = container.attach()
    assert (out, status["reason"], status["code"]) == (b"done\n", "exit", 0)
    assert container.inside() == 0


def test_a_command_over_its_time_is_ended_with_all_it_started(container: Container) -> None:
    container.run("sleep 300 & setsid sleep 300 & wait", strict=True, wall_s=0.5)
    _, status = container.attach()
    assert status["reason"] == "time"
    assert container.inside() == 0


def test_too_much_disk_ends_it(container: Container) -> None:
    container.run("head -c 3000000 /dev/zero > big; sleep 60", strict=True, disk_bytes=1 << 20, folders=["/app"])
    assert container.attach()[1]["reason"] == "disk"


def test_a_flood_of_output_is_capped_and_blocks_nobody(container: Container) -> None:
    _, out, status = container.run("head -c 9000000 /dev/zero; exit 4")
    assert status["code"] == 4
    assert len(out) <= (4 << 20) + 64
    assert container.attach(offset=4 << 20)[0] == b"\n[output cut here]\n"


@pytest.mark.parametrize("signal", ["KILL", "TERM", "INT", "STOP"])
def test_pid_1_cannot_be_killed_or_looked_into_from_inside(container: Container, signal: str) -> None:
    _, out, status = container.run(f"kill -{signal} 1; sleep 0.2; echo alive; kill -KILL 1; echo still")
    assert (out, status["code"]) == (b"alive\nstill\n", 0)
    assert container.attach(offset=6) == (b"still\n", status)  # and it answers as before


def test_pid_1_ends_when_the_container_is_stopped(container: Container) -> None:
    container.run("sleep 300 & disown; echo started")
    os.kill(container.pid, SIGTERM)  # from outside, as a kubelet does
    assert container.process.wait(timeout=10) == 0


def test_a_command_can_be_ended_by_sigterm(container: Container) -> None:
    _, out, status = container.run("sleep 60 & kill -TERM $!; wait $!; echo $?")
    assert (out, status["code"]) == (b"143\n", 0)


def test_start_files_are_kept_apart_and_skills_go_where_the_harness_looks(container: Container, tmp_path: Path) -> None:
    setup = b"mkdir -p skills/tool; echo how > skills/tool/SKILL.md; echo seed $S > start.txt; ln -s start.txt link\n"
    copies = json.dumps([["skills/tool", ".agents/skills/tool"]])
    argv = [container.python, "-I", f"{RUNTIMES}/pod_words.py", "set-up", "/tmp/setup.sh", "/app", "/orig", copies]
    env = {"PATH": "/usr/bin:/bin", "S": "5"}
    _, out, status = container.run("", {"/tmp/setup.sh": setup}, argv=argv, env=env)
    assert status["code"] == 0, out
    assert (tmp_path / "orig" / "start.txt").read_text() == "seed 5\n"
    assert (container.work / ".agents/skills/tool/SKILL.md").read_text() == "how\n"
    assert not (tmp_path / "orig" / ".agents").exists()
    assert os.readlink(tmp_path / "orig" / "link") == "start.txt"


@pytest.mark.parametrize("late", [False, True])
def test_the_door_is_tried_only_once_the_network_is_there(late: bool, container: Container) -> None:
    asked: Callable[..., str] = lambda **told: json.dumps({"forbidden": [], "needed": [], "patience_s": 0.3, **told})  # noqa: E731
    closed = ("127.0.0.1", 1)
    code, out, _ = container.word("ready", asked(forbidden=[closed], needed=[closed] if late else []))
    told = json.loads(out)
    assert (code, told["open"], told["closed"]) == (0, [], ["127.0.0.1:1"] if late else [])
    assert (told["tries"] > 1) == late
