import base64
import stat
from pathlib import Path

from openforge_tui.clipboard import copy


def test_a_terminal_is_asked_by_osc_52() -> None:
    written: list[str] = []
    assert copy("héllo", written.append, {}) == "the terminal (OSC 52)"
    assert written == [f"\x1b]52;c;{base64.b64encode('héllo'.encode()).decode()}\a"]


def test_tmux_is_told_to_hand_it_on() -> None:
    written: list[str] = []
    copy("x", written.append, {"TMUX": "/tmp/tmux-0/default,1,0"})
    assert written == ["\x1bPtmux;\x1b\x1b]52;c;eA==\a\x1b\\"]


def test_the_systems_own_program_comes_first_where_there_is_a_display(tmp_path: Path, monkeypatch) -> None:
    program = tmp_path / "xclip"
    program.write_text(f'#!/bin/sh\ncat > "{tmp_path}/copied"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    written: list[str] = []
    assert copy("text", written.append, {"DISPLAY": ":0"}) == "xclip"
    assert (tmp_path / "copied").read_text() == "text"
    assert written == []
    program.write_text("#!/bin/sh\nexit 1\n")
    assert copy("text", written.append, {"DISPLAY": ":0"}) == "the terminal (OSC 52)"
