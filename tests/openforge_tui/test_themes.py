"""Colours that mean different things look different."""

from itertools import combinations

import pytest
from rich.color import Color
from rich.terminal_theme import TerminalTheme
from textual.app import App

from openforge_tui.themes import ANSI_DARK
from openforge_tui.transcript import _ROLES, _SHADES


@pytest.mark.parametrize("theme", [ANSI_DARK, App.ansi_theme_light._default])
@pytest.mark.parametrize("styles", [[style for _, style in _SHADES], ["red", *_ROLES.values()]])
def test_no_two_shades_of_a_token_and_no_two_roles_look_alike(theme: TerminalTheme, styles: list[str]) -> None:
    seen = [Color.parse(style.removeprefix("bold ")).get_truecolor(theme) for style in styles]
    for one, other in combinations(seen, 2):
        assert sum(abs(a - b) for a, b in zip(one, other, strict=True)) > 50
