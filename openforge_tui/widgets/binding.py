"""Actions (openforge_tui/actions.py) as Textual's bindings."""

from textual.binding import Binding, BindingType

from openforge_tui.actions import MODES, of_scopes


def bindings(*scopes: str) -> list[BindingType]:
    """The bindings of these scopes. Their ids are the actions' own, so that a keymap finds them."""
    return [
        Binding(
            action.keys,
            action.name,
            action.title,
            id=action.id,
            show=action.footer,
            tooltip=action.help,
            priority=False,
        )
        for action in of_scopes(*scopes)
    ]


def mode_bindings() -> list[BindingType]:
    """One key a mode."""
    return [
        Binding(mode.key, f"mode('{mode.noun}')", mode.noun, id=f"mode.{mode.noun}", show=False, tooltip=mode.help)
        for mode in MODES
    ]
