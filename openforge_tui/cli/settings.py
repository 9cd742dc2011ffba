"""What was typed before or after any verb: output format, project, store, target, overrides.

Parsed once by `app.py`, read by verbs through `current()`. Knows nothing about the config file beyond its place.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from openforge.errors import UsageError

if TYPE_CHECKING:
    from openforge.config import Loaded

FORMATS = ("table", "json", "jsonl", "csv", "parquet", "name")


@dataclass(frozen=True)
class Settings:
    """Global options; `output`, `store` and `target` are None when nobody typed them."""

    output: str | None = None
    project: Path = field(default_factory=Path.cwd)
    store: Path | None = None
    target: str | None = None
    overrides: dict[str, str] = field(default_factory=dict)
    readonly: bool = False  # of the app: typed before its verb, or without any

    def load(self) -> "Loaded":
        """The configuration in force here: flags typed now win over every file. Raises ConfigError."""
        from openforge.config import load

        return load(self.project, target=self.target, overrides=self._all_overrides())

    def load_real(self) -> "Loaded":
        """The same, for what has no meaning where nothing runs. UsageError on a simulated cluster."""
        from openforge_tui.start_form import refuse_simulated

        loaded = self.load()
        refuse_simulated(loaded.config)
        return loaded

    def store_root(self) -> Path:
        """The store's folder, absolute; it may not exist yet."""
        return (self.project / Path(self.load().config.store.path).expanduser()).resolve()

    def words(self) -> tuple[str, ...]:
        """The options that make another `openforge`, started in this folder, see the same: project, store, target,
        overrides."""
        elsewhere = None if self.project == Path.cwd() else self.project
        options = {"--project": elsewhere, "--store": self.store and self.store.absolute(), "--target": self.target}
        typed = [word for option, value in options.items() if value is not None for word in (option, str(value))]
        return (*typed, *(word for pair in self.overrides.items() for word in ("--set", "=".join(pair))))

    def _all_overrides(self) -> dict[str, str]:
        # A path typed on the command line means "from here", one in the file means "from the project".
        typed = {} if self.store is None else {"store.path": str(self.store.expanduser().absolute())}
        return {**self.overrides, **typed}


_current = Settings()


def current() -> Settings:
    """The settings of the command that is running."""
    return _current


def change(**typed: object) -> None:
    """Take over what was typed; None leaves the value as it was."""
    global _current
    known = {name: value for name, value in typed.items() if value is not None}
    _current = replace(_current, **known)  # type: ignore[arg-type]


def reset() -> None:
    """Forget everything typed; each run of the command starts here."""
    global _current
    _current = Settings()


def check_output(value: str | None) -> str | None:
    """One of FORMATS or None; raises UsageError."""
    if value is not None and value not in FORMATS:
        raise UsageError(f"-o {value}: there is no such format", hint=f"choose one of {', '.join(FORMATS)}")
    return value


def parse_overrides(pairs: list[str]) -> dict[str, str]:
    """`["run.samples=2"]` as `{"run.samples": "2"}`; raises UsageError for a pair without `=`."""
    split = [pair.partition("=") for pair in pairs]
    for (key, equals, _), pair in zip(split, pairs, strict=True):
        if not (key and equals):
            raise UsageError(f"--set {pair}: expected KEY=VALUE", hint="for example --set run.samples=2")
    return {key: value for key, _, value in split}
