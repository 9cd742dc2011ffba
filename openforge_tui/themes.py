"""How the app looks. Textual's own themes are there, too: `[app] theme`."""

from rich.terminal_theme import MONOKAI, TerminalTheme
from textual.theme import Theme

_OWN = {3: (242, 193, 78), 5: (198, 120, 221), 11: (242, 193, 78), 13: (198, 120, 221)}
# The sixteen colours on a dark ground. Of Monokai's, yellow is an orange that no eye tells from "dark orange", and
# magenta is its red.
ANSI_DARK = TerminalTheme(
    MONOKAI.background_color,
    MONOKAI.foreground_color,
    [_OWN.get(number) or MONOKAI.ansi_colors[number] for number in range(16)],
)

THEMES = (
    Theme(
        name="openforge",
        primary="#e8873a",
        secondary="#4c9fd6",
        accent="#f2c14e",
        foreground="#e3e0da",
        background="#16161a",
        surface="#1c1c21",
        panel="#26262d",
        success="#7fb069",
        warning="#f2c14e",
        error="#e0556b",
        boost="#2c2c34",
        dark=True,
    ),
    Theme(
        name="openforge-light",
        primary="#b3541e",
        secondary="#1f6fa8",
        accent="#a67c00",
        foreground="#26231f",
        background="#fbf9f5",
        surface="#f3efe8",
        panel="#e7e1d6",
        success="#3f7d2b",
        warning="#a67c00",
        error="#b3263e",
        boost="#ded7c9",
        dark=False,
    ),
)
