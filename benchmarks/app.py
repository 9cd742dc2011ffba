"""What the app costs: a store of a million calls and a rollout of 300 turns, and a run of 64 rollouts under way.

Drives the real program in a pseudo-terminal: time from a key to what it draws, memory, CPU. A second part runs the app
in this process, to see how long its event loop was ever held up. The peer is Textual's own table with the same rows.
Prints one line per figure and ends with 5 when one misses its goal.
"""

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.big_store import FIRST, ROOT, make_store
from benchmarks.figure import report
from benchmarks.terminal import Terminal

_MODES = "345612"
_WALK = ["j", "enter", "pagedown", *"ogggg", "end", "home", "enter", *"j]]ff356123"]
_ALL_CALLS = "select rollout_id, call_id from calls"
_WATCHED_S = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--only", choices=["keys", "loop", "live", "table"], help="One part alone.")
    given = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        if given.only != "live":
            long, made_s = _timed(lambda: make_store(project / ".openforge", given.calls, given.runs))
            print(f"{given.calls} calls in {given.runs} runs, made in {made_s:.0f} s; {long} has 300 turns", flush=True)
            parts = {"keys": keys, "loop": loop, "table": table}
            for name, part in parts.items():
                if given.only in (None, name):
                    good &= part(project)
        if given.only in (None, "live"):
            good &= live(project / "live")
    return 0 if good else 5


def app(project: Path, *words: str) -> Terminal:
    env = {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    return Terminal([sys.executable, "-m", "openforge_tui", "app", *words], env, project)


def keys(project: Path) -> bool:
    """Start, and every kind of key on every screen."""
    good, taken = True, {}
    for size in (1, 2):  # the first one warms the file cache
        with app(project, "runs") as terminal:
            paint_s, listed_s = terminal.read_until("overview"), terminal.read_until(FIRST)
            if size == 1:
                continue
            good &= report("first paint", paint_s, "s", 1.0)
            good &= report("runs listed", listed_s, "s", 3.0)
            taken["runs"] = [terminal.key(key) for key in "jjjjkkkk" * 3]
            began = time.perf_counter()
            terminal.key("\r")
            terminal.read_until("rollouts")
            good &= report("rollouts listed", time.perf_counter() - began, "s", 3.0)
            taken["rollouts"] = [
                terminal.key(key) for key in ["j", "k", "\x06", "\x06", "\x02", "g", "g", "g", "g"] * 3
            ]
            taken["filter"] = [terminal.key(key) for key in "/long"]
            terminal.key("\r")
            time.sleep(2)
            began = time.perf_counter()
            terminal.key("\r")
            terminal.read_until("300 turns")
            good &= report("rollout of 300 turns shown", time.perf_counter() - began, "s", 3.0)
            taken["turns"] = [terminal.key(key) for key in ["j", "j", "\x06", "k", "\x02"] * 5]
            taken["tabs"] = [terminal.key(key) for key in "]]]][[[[" * 2]
            taken["modes"] = []
            for key in _MODES * 3:
                taken["modes"].append(terminal.key(key))
                if key == "4":  # it is typed in
                    terminal.key("\x1b")
            terminal.key("4")
            terminal.key("e")
            time.sleep(1)
            taken["sql editor"] = [terminal.key(key) for key in "select * from rollouts"]
            terminal.memory_mb()
            terminal.key("\x1b[15~")  # f5
            terminal.read_until(" rows · ")
            peak = 0.0
            for _ in range(10):
                peak = max(peak, terminal.memory_mb())
                time.sleep(0.2)
            terminal.key("\x1b")
            taken["sql rows"] = [terminal.key(key) for key in ["\x1b[B", "\x1b[B", "\x1b[C", "\x1b[6~", "\x1b[5~"] * 4]
            good &= report("memory, the query's process too", max(peak, terminal.memory_mb()), "MB", 600)
    for name, times in taken.items():
        good &= report(f"key p95: {name}", sorted(times)[int(len(times) * 0.95)] * 1000, "ms", 100)
    return good


def loop(project: Path) -> bool:
    """The longest time for which the event loop did nothing else, over a walk through the screens."""

    async def walk() -> float:
        from openforge.config import load
        from openforge_tui.app import Desk, Opening

        longest = 0.0

        async def watch() -> None:
            nonlocal longest
            while True:
                before = time.perf_counter()
                await asyncio.sleep(0.001)
                longest = max(longest, time.perf_counter() - before - 0.001)

        desk = Desk(Opening(load(project), mode="runs"))
        async with desk.run_test(size=(140, 45)) as pilot:
            await pilot.pause(3)
            watching = asyncio.create_task(watch())
            for key in _WALK:
                await pilot.press({"]": "right_square_bracket"}.get(key, key))
                await pilot.pause(0.4)
            await pilot.press("4")
            desk.screen.editor.put(_ALL_CALLS)  # type: ignore[attr-defined]
            await pilot.press("ctrl+j")
            while desk.screen.results.row_count < 1000:  # type: ignore[attr-defined]
                await pilot.pause(0.1)
            for key in ["escape", "pagedown", "end", "home"]:
                await pilot.press(key)
                await pilot.pause(0.4)
            watching.cancel()
        return longest

    longest_s = asyncio.run(walk())
    return report("event loop held up at most", longest_s * 1000, "ms", 50)


def table(project: Path) -> bool:
    """Ten thousand rows in our table and in Textual's own."""

    async def show(ours: bool) -> float:
        from textual.app import App
        from textual.widgets import DataTable

        from openforge.store.lists import list_rollouts
        from openforge_tui.screens.rollouts import EACH
        from openforge_tui.widgets.grid import Grid

        rows = list_rollouts(project / ".openforge", FIRST)[:10_000]

        class Shown(App[None]):
            def compose(self):  # type: ignore[no-untyped-def]
                yield Grid(EACH, "rollout_id") if ours else DataTable()

        async with Shown().run_test(size=(140, 45)) as pilot:
            began = time.perf_counter()
            if ours:
                grid = pilot.app.query_one(Grid)
                grid.show(grid.prepare(rows))
            else:
                plain = pilot.app.query_one(DataTable)
                plain.add_columns(*(column.title or column.name for column in EACH))
                plain.add_rows([str(row.get(column.name) or "") for column in EACH] for row in rows)
            await pilot.pause()
            return time.perf_counter() - began

    ours_s, theirs_s = asyncio.run(show(ours=True)), asyncio.run(show(ours=False))
    print(f"10,000 rollouts shown: {ours_s:.2f} s, Textual's own table {theirs_s:.2f} s")
    return report("10,000 rollouts shown", ours_s / theirs_s, "of Textual's own table", 0.5)


def live(project: Path) -> bool:
    """CPU of the app while 64 rollouts go on, and how long what was written takes to be drawn."""
    (project / ".openforge" / "runs").mkdir(parents=True)
    good = True
    argv = [sys.executable, "-m", "benchmarks.app_writer", str(project / ".openforge")]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout is not None
            writer.stdout.readline()
            running = ["\r", "/", "-l state=running", "\r", "\r"]
            for name, pressed in {"runs": [], "rollouts": ["\r"], "a rollout under way": running}.items():
                with app(project, "runs") as terminal:
                    terminal.read_until("r0000000aaa")
                    for key in pressed:
                        terminal.key(key)
                        time.sleep(2)
                    before, end = terminal.cpu_s(), time.monotonic() + _WATCHED_S
                    while time.monotonic() < end:
                        terminal.settle(1)
                    good &= report(f"CPU: {name}", (terminal.cpu_s() - before) / _WATCHED_S * 100, "% of a core", 25)
            with app(project, "runs") as terminal:
                terminal.read_until("r0000000aaa")
                terminal.key("\r")
                waits = []
                for _ in range(5):
                    name = f"aa{random.randrange(10**6)}"
                    (project / "say").write_text(name)
                    began = time.perf_counter()
                    terminal.read_until(name, 30)
                    waits.append(time.perf_counter() - began)
                good &= report("a new rollout is drawn after at most", max(waits), "s", 2)
        finally:
            writer.terminate()
    return good


def _timed[T](work: object) -> tuple[T, float]:
    began = time.perf_counter()
    done = work()  # type: ignore[operator]
    return done, time.perf_counter() - began


if __name__ == "__main__":
    os.environ.pop("NO_COLOR", None)
    sys.exit(main())
