"""The policy server's life, with a stand-in for vLLM that answers /health and has a child of its own."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cluster import policy_server
from cluster.policy_server import PolicyServer, Serving, _lock, end_session, model_hash, use_policy_server
from openforge.errors import InfraError

pytestmark = pytest.mark.contract

LONG_S = f"{1000 + os.getpid()}.5"  # of its own, so that another run of the tests on this machine is not seen
STAND_IN = f"""
import http.server, subprocess, sys
subprocess.Popen(["sleep", "{LONG_S}"])
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *a): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serving:
    monkeypatch.setenv("OPENFORGE_CACHE", str(tmp_path / "cache"))
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    program = tmp_path / "stand_in.py"
    program.write_text(STAND_IN)
    monkeypatch.setattr(policy_server, "command", lambda serving, port: [sys.executable, str(program), str(port)])
    monkeypatch.setattr(policy_server, "_alias", lambda: "")
    return Serving(model)


async def test_it_starts_says_what_it_does_and_stops_with_its_children(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(tempfile, "tempdir", str(scratch := tmp_path / "scratch"))
    scratch.mkdir()
    server = await use_policy_server(serving, said.append)
    assert not server.adopted
    assert [entry.name[:15] for entry in scratch.iterdir()] == ["openforge-vllm-"]
    assert "starting" in said[0]
    assert "ready" in said[-1]
    assert children() != []
    assert await server.leave()
    assert children() == []
    assert server.died.is_set()
    assert list(scratch.iterdir()) == []  # its sockets


async def test_a_second_user_adopts_it_and_only_the_last_one_stops_it(serving: Serving) -> None:
    first, second = await use_policy_server(serving), await use_policy_server(serving)
    assert (second.adopted, second.url, second.weight_version) == (True, first.url, first.weight_version)
    assert not await first.leave()
    assert children() != []
    assert await second.leave()
    assert children() == []


async def test_who_starts_one_while_it_is_stopped_waits_and_gets_a_whole_one(serving: Serving) -> None:
    for _ in range(3):
        first = await use_policy_server(serving)
        stopped, second = await asyncio.gather(first.leave(), use_policy_server(serving))
        assert stopped == (not second.adopted)
        assert await second.leave()
        assert children() == []


async def test_waiting_for_another_start_is_said_and_stops_no_event_loop(serving: Serving) -> None:
    said: list[str] = []
    server = await use_policy_server(serving)
    await server.leave()
    async with _lock(server._state):
        waiting = asyncio.create_task(use_policy_server(serving, said.append))
        await asyncio.sleep(0.1)
        assert said == ["policy: another program is starting or stopping this server; waiting for it"]
    assert await (await waiting).leave()


async def test_other_weights_or_other_settings_are_another_server(serving: Serving) -> None:
    first = await use_policy_server(serving)
    other = await use_policy_server(Serving(serving.model_dir, max_model_len=1))
    (serving.model_dir / "weights").write_text("new")
    third = await use_policy_server(serving)
    assert len({first.url, other.url, third.url}) == 3
    assert first.weight_version != third.weight_version
    for server in (first, other, third):
        assert await server.leave()


async def test_one_that_was_started_to_stay_stays(serving: Serving) -> None:
    server = await use_policy_server(serving, keep=True)
    assert not await server.leave()
    again = await use_policy_server(serving)
    assert again.adopted
    os.killpg(again.pid, signal.SIGKILL)
    await asyncio.wait_for(again.died.wait(), 5)
    await again.leave()


async def test_a_death_is_noticed_and_the_next_user_gets_a_new_one(serving: Serving) -> None:
    server = await use_policy_server(serving)
    os.killpg(server.pid, signal.SIGKILL)
    await asyncio.wait_for(server.died.wait(), 5)
    await server.leave()
    again = await use_policy_server(serving)
    assert not again.adopted
    assert await again.leave()


@pytest.mark.parametrize("keep", [False, True])
async def test_a_killed_api_process_leaves_no_engine_behind(serving: Serving, keep: bool) -> None:
    first, second = await use_policy_server(serving, keep=keep), await use_policy_server(serving)
    assert second.adopted
    os.kill(first.pid, signal.SIGKILL)  # the process alone, not its group
    await asyncio.wait_for(second.died.wait(), 5)
    assert children() == []
    await first.leave()
    await second.leave()


async def test_an_engine_whose_users_died_with_its_api_process_is_ended_by_the_next(serving: Serving) -> None:
    server = await use_policy_server(serving, keep=True)
    await server.leave()
    os.kill(server.pid, signal.SIGKILL)
    assert children() != []
    again = await use_policy_server(serving)
    assert not again.adopted
    assert len(children()) == 1
    await again.leave()


def test_a_session_of_the_same_number_that_is_not_the_servers_is_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    other = subprocess.Popen(["sleep", LONG_S], start_new_session=True, stdout=subprocess.DEVNULL)
    end_session(other.pid, log)
    with pytest.raises(subprocess.TimeoutExpired):
        other.wait(0.2)
    other.kill()
    other.wait()


async def test_a_stale_state_file_never_names_a_foreign_process(serving: Serving) -> None:
    server = await use_policy_server(serving, keep=True)
    [state] = (Path(os.environ["OPENFORGE_CACHE"]) / "servers").glob("*.json")
    text = state.read_text()
    os.killpg(server.pid, signal.SIGKILL)
    await asyncio.wait_for(server.died.wait(), 5)
    await server.leave()
    state.write_text(text.replace(f'"pid": {server.pid}', f'"pid": {os.getpid()}'))
    again = await use_policy_server(serving)
    assert not again.adopted
    assert await again.leave()


async def test_a_server_that_does_not_come_up_shows_the_end_of_its_log(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = [sys.executable, "-c", "print('no room for the weights'); raise SystemExit(3)"]
    monkeypatch.setattr(policy_server, "command", lambda serving, port: broken)
    with pytest.raises(InfraError, match="ended with 3"):
        await use_policy_server(serving)
    with pytest.raises(InfraError, match="no room for the weights"):
        await use_policy_server(serving)


async def test_interrupted_while_starting_it_leaves_nothing(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_server, "command", lambda serving, port: ["sleep", LONG_S])
    task: asyncio.Task[PolicyServer] = asyncio.create_task(use_policy_server(serving))
    async with asyncio.timeout(10):
        while not children():  # noqa: ASYNC110 - another process has no event to wait for
            await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert children() == []


def test_a_folder_that_is_no_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(InfraError, match=r"config\.json"):
        model_hash(tmp_path)


def children() -> list[int]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes() == f"sleep\0{LONG_S}\0".encode():
                found.append(int(pid))
        except OSError:
            continue
    return found
