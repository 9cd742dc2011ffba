"""`openforge web` as a program, opened by a real Chromium and knocked at by hand."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

sys.path.insert(0, str(Path(__file__).parents[1] / "openforge" / "store"))

from synthetic import SyntheticRun

pytestmark = pytest.mark.contract

_WAIT_S = 20.0
# The terminal keeps itself to itself; the page's script stores it as `this.terminal`, which this overhears.
_OVERHEAR = """Object.defineProperty(Object.prototype, "terminal", {configurable: true, set(value) {
    window.overheard = value;
    Object.defineProperty(this, "terminal", {value, writable: true, configurable: true});
}})"""
_SCREEN = """() => {
    if (!window.overheard) return "";
    const {buffer: {active}, rows} = window.overheard;
    return Array.from({length: rows}, (_, y) => active.getLine(y)?.translateToString(true) ?? "").join("\\n");
}"""
# A tab by hand: what it was answered in text, and the code it was closed with.
_SAY = """said => new Promise(ended => {
    const tab = new WebSocket(`ws://${location.host}/ws`), told = [];
    tab.onopen = () => { tab.send('["ping","1"]'); tab.send(said); };
    tab.onmessage = message => typeof message.data === "string" && told.push(message.data);
    tab.onclose = closed => ended([...told, closed.code]);
})"""
# A key (or a text with spaces), and what is on the screen then; the second line says where one is. A screen that gains
# a journey gains rows here.
JOURNEY = (
    ("?", "What happened in this run."),
    ("Escape", "begun (UTC)"),
    ("Enter", "fix-mean.react.0"),
    ("Enter", "reward 1"),
    ("]", "30 sampled"),
    ("Escape", "1 rollouts"),
    ("Escape", "begun (UTC)"),
    ("4", "\n sql"),
    ("select harness, count(*) as n from rollouts group by all", "group by all"),
    ("F5", "react"),
    ("Escape", "? help"),
    ("3", "\n live"),
)


class Served:
    """`openforge web` over one project."""

    def __init__(self, project: Path, *words: str) -> None:
        argv = [sys.executable, "-m", "openforge_tui", "web", "runs", "--project", str(project), "-o", "json", *words]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        told = ""
        while not told.rstrip().endswith("}"):
            line = self.process.stdout.readline()
            assert line, self.process.communicate()[1]
            told += line
        self.url = str(json.loads(told)["url"])
        self.port = int(urlsplit(self.url).port or 0)
        self.token = parse_qs(urlsplit(self.url).query)["token"][0]

    def ask(self, path: str, **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        return connection.getresponse()

    def cookie(self) -> str:
        return str(self.ask(f"/?token={self.token}").headers["Set-Cookie"].partition(";")[0])

    def apps(self) -> list[int]:
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def end(self, number: signal.Signals = signal.SIGINT) -> tuple[int, str]:
        """Its exit code and what it narrated."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        _, said = self.process.communicate(timeout=30)
        return self.process.returncode, said


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / ".openforge").mkdir()
    run = SyntheticRun(folder / ".openforge")
    run.rollout(task="fix-mean")
    run.end()
    return folder


@pytest.fixture(scope="module")
def served(project: Path) -> Iterator[Served]:
    server = Served(project, "--port", "0")
    yield server
    server.end()


@pytest.fixture
def context(chromium: Browser) -> Iterator[BrowserContext]:
    opened = chromium.new_context(viewport={"width": 1200, "height": 800})
    opened.add_init_script(_OVERHEAR)
    yield opened
    opened.close()


def until(true: Callable[[], object], page: Page | None = None) -> None:
    """Wait for something to become true; fails after a while, with the screen."""
    ends_at = time.monotonic() + _WAIT_S
    while not true():
        assert time.monotonic() < ends_at, page.evaluate(_SCREEN) if page else "it did not come to that"
        if page is not None:
            page.wait_for_timeout(50)
        else:
            time.sleep(0.05)


def visit(page: Page, url: str) -> None:
    page.goto(url)
    page.wait_for_selector("#terminal")  # the page after the one that takes the token


def shows(page: Page, text: str) -> None:
    until(lambda: text in str(page.evaluate(_SCREEN)), page)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("token", ["", "?token=", "?token=wrong", "?token=%FF%ED"])
@pytest.mark.parametrize("path", ["/", "/ws", "/static/js/textual.js", "/static/", "/download/x", "/nothing"])
def test_every_route_is_refused_without_the_token(served: Served, path: str, token: str) -> None:
    answer = served.ask(path + token, Cookie=f"openforge-{served.port}=guess")
    assert answer.status == 403
    told = answer.read().decode()
    assert told.count("\n") == 1, "one plain sentence"
    assert "`openforge web` printed" in told
    assert "Set-Cookie" not in answer.headers


def test_the_token_becomes_a_cookie_that_no_script_and_no_other_site_can_use(served: Served) -> None:
    answer = served.ask(f"/?token={served.token}")
    assert (answer.status, answer.headers["Refresh"]) == (200, "0; url=/")
    assert {"HttpOnly", "SameSite=Strict"} <= set(answer.headers["Set-Cookie"].split("; "))
    assert served.ask("/", Cookie=served.cookie()).status == 200
    assert served.ask("/nothing", Cookie=served.cookie()).status == 404
    assert served.ask("/static/", Cookie=served.cookie()).status in (403, 404), "folders are not listed"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost@evil.example", "localhost; x"])
def test_a_name_of_somebody_else_that_leads_here_is_refused(served: Served, host: str) -> None:
    answer = served.ask(f"/?token={served.token}", Host=host)
    assert (answer.status, "127.0.0.1 or localhost" in answer.read().decode()) == (403, True)


def test_a_tunnel_may_have_another_port(served: Served) -> None:
    answer = served.ask("/", Host="localhost:9", Origin="http://localhost:9", Cookie=served.cookie())
    assert (answer.status, "ws://localhost:9/ws" in answer.read().decode()) == (200, True)


@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:1", "https://127.0.0.1", "null"])
def test_another_page_cannot_open_the_websocket(served: Served, origin: str) -> None:
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec_WebSocket_Version": "13"}
    key = {"Sec_WebSocket_Key": "AAAAAAAAAAAAAAAAAAAAAA==", "Cookie": served.cookie()}
    answer = served.ask("/ws", Origin=origin, **upgrade, **key)
    assert (answer.status, "Another page asked" in answer.read().decode()) == (403, True)
    assert served.apps() == []


def test_a_tab_is_an_app_that_ends_with_it(served: Served, context: BrowserContext) -> None:
    asked: list[str] = []
    faults: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    context.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    context.on("weberror", lambda error: faults.append(str(error.error)))
    first = context.new_page()
    visit(first, served.url)
    shows(first, "r0000000aaa")
    assert first.url == f"http://127.0.0.1:{served.port}/", "the token does not stay in the address"
    for key, text in JOURNEY:
        first.keyboard.type(key) if " " in key else first.keyboard.press(key)
        shows(first, text)
    (first_app,) = served.apps()

    second = context.new_page()
    visit(second, f"http://127.0.0.1:{served.port}/")  # the cookie is enough
    shows(second, "r0000000aaa")
    assert len(served.apps()) == 2
    first.close()
    until(lambda: not lives(first_app))
    second.keyboard.press("q")
    second.wait_for_selector("text=Open it again")
    until(lambda: served.apps() == [])
    second.click("text=Open it again")
    shows(second, "r0000000aaa")
    second.close()
    until(lambda: served.apps() == [])

    assert [fault for fault in faults if "CLOSED state" not in fault] == [], "textual.js tells a closed tab of a blur"
    assert {urlsplit(url).netloc for url in asked} == {f"127.0.0.1:{served.port}"}, "nothing comes from elsewhere"


def test_a_message_that_is_none_of_the_page_closes_its_tab_with_one_line(
    project: Path, context: BrowserContext
) -> None:
    served = Served(project, "--port", "0")
    nonsense = ("{}", "[]", "no JSON", "[" * 100_000, '["stdin", 1]', '["resize", {"width": "80"}]', '["ls", "/"]')
    page = context.new_page()
    visit(page, served.url)
    assert [page.evaluate(_SAY, said) for said in nonsense] == [['["pong", "1"]', 1008]] * len(nonsense)
    page.close()
    until(lambda: served.apps() == [])
    _, narrated = served.end()
    lines = [line for line in narrated.splitlines() if "which the page never does" in line]
    assert (len(lines), "Traceback" in narrated) == (len(nonsense), False), narrated


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_behind(project: Path, context: BrowserContext, number: signal.Signals) -> None:
    served = Served(project, "--port", "0", "--readonly")
    page = context.new_page()
    visit(page, served.url)
    shows(page, "read only")
    (app,) = served.apps()
    code, said = served.end(number)
    assert code == (-9 if number is signal.SIGKILL else 130), said
    until(lambda: not lives(app))
    page.wait_for_selector("text=Open it again")
    assert "Traceback" not in said


def serve_program(before: str, *argv: str, named: str = "port=0") -> "subprocess.Popen[str]":
    """`serve` for a Python program instead of the app; its first line is the address."""
    program = (
        f"import asyncio, sys; from openforge_tui import web; {before}\n"
        f"asyncio.run(web.serve([sys.executable, *sys.argv[1:]], {named}, say=print,"
        " listening=lambda url: print(url, flush=True)))"
    )
    return subprocess.Popen([sys.executable, "-c", program, *argv], stdout=subprocess.PIPE, text=True)


def test_the_usual_port_is_taken_or_a_free_one_but_never_both() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        usual = probe.getsockname()[1]
        others = [serve_program("", named=f"port=None, preferred={usual}")]  # while the probe has the port
        assert others[0].stdout is not None
        assert urlsplit(others[0].stdout.readline()).port != usual
    others.append(serve_program("", named=f"port=None, preferred={usual}"))
    assert others[1].stdout is not None
    assert urlsplit(others[1].stdout.readline()).port == usual
    for server in others:
        listening = Path(f"/proc/{server.pid}/net/tcp").read_text().splitlines()[1:]
        inodes = {line.split()[9] for line in listening if line.split()[3] == "0A"}
        held = {os.readlink(fd) for fd in Path(f"/proc/{server.pid}/fd").iterdir()}
        assert len(held & {f"socket:[{inode}]" for inode in inodes}) == 1
        server.kill()
        server.communicate()


def test_an_app_that_does_not_end_is_killed(chromium: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stubborn = tmp_path / "stubborn.py"
    stubborn.write_text(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "sys.stdout.buffer.write(b'__GANGLION__\\nD' + (20).to_bytes(4, 'big') + b'x' * 20)\n"
        "sys.stdout.flush()\n"
        "time.sleep(600)\n"
    )
    server = serve_program("web._LEAVE_S = 0.2", str(stubborn))
    assert server.stdout is not None
    page = chromium.new_page()
    try:
        visit(page, server.stdout.readline().strip())
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
        until(children.read_text, page)
        (pid,) = map(int, children.read_text().split())
        page.close()
        until(lambda: not lives(pid))
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def test_an_app_that_cannot_start_says_so(chromium: Browser, project: Path) -> None:
    config = project / "openforge.toml"
    served = Served(project, "--port", "0")
    context = chromium.new_context()
    context.add_init_script(_OVERHEAR)
    page = context.new_page()
    try:
        config.write_text("version = 1\nnonsense = true\n")
        visit(page, served.url)
        shows(page, "ended with exit code 2")
    finally:
        config.unlink()
        context.close()
        _, said = served.end()
    assert "nonsense" in said


def test_wrong_use_is_told(project: Path, served: Served, tmp_path: Path) -> None:
    def web(*words: str) -> tuple[int, str]:
        argv = [sys.executable, "-m", "openforge_tui", "web", *words]
        ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=dict(os.environ))
        assert ended.stdout == ""
        return ended.returncode, ended.stderr

    code, said = web("--port", str(served.port))
    assert (code, "openforge web --port 0" in said) == (3, True)
    assert web("nowhere")[0] == 2
    (tmp_path / "openforge.toml").write_text("nonsense = true\n")
    assert web()[0] == 2
