"""`openforge --spec`: every command with its options and what it prints, for programs that call this one."""

import importlib
from typing import Any

from openforge import __version__

EXIT_CODES = {
    0: "ok",
    1: "the work failed",
    2: "usage or configuration",
    3: "infrastructure: trying again may help",
    4: "a time limit was reached",
    5: "a check found something",
    130: "interrupted or cancelled",
}


def describe(verbs: dict[str, Any], load: Any) -> dict[str, Any]:
    """The whole command line as data. `load` gives a verb's command."""
    return {
        "version": __version__,
        "output": "-o json and jsonl hold rows as objects; their keys are `columns` where a command has them",
        "exit_codes": {str(code): meaning for code, meaning in EXIT_CODES.items()},
        "commands": [one for name, verb in verbs.items() for one in _commands(name, load(name), verb.module)],
    }


def _commands(name: str, command: Any, module: str) -> list[dict[str, Any]]:
    children = getattr(command, "commands", None)
    if children:
        return [one for child, sub in children.items() for one in _commands(f"{name} {child}", sub, module)]
    columns = getattr(importlib.import_module(f"openforge_tui.cli.{module}"), "COLUMNS", None)
    own = [param for param in command.params if param.expose_value]
    return [
        {
            "command": f"openforge {name}",
            "help": command.help or "",
            "arguments": [_param(param) for param in own if param.param_type_name == "argument"],
            "options": [_param(param) for param in own if param.param_type_name == "option"],
            **({"columns": list(columns)} if columns else {}),
        }
    ]


def _param(param: Any) -> dict[str, Any]:
    default = param.default
    return {
        "name": param.name,
        "flags": list(param.opts) if param.param_type_name == "option" else [],
        "type": _type_name(param.type_descriptor.annotation),
        "required": bool(param.required),
        "default": default if isinstance(default, str | int | float | bool | None) else str(default),
        "many": bool(getattr(param, "multiple", False)) or param.nargs == -1,
        "help": getattr(param, "help", "") or "",
    }


def _type_name(annotation: Any) -> str:
    return getattr(annotation, "__name__", str(annotation)).rpartition(".")[2].lower()
