"""What a bug report needs, as one file: versions, configuration, doctor's findings, runs, the ends of logs. Secrets are
hidden and no model text is in it."""

import importlib.metadata
import io
import json
import platform
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from openforge.cache import cache_dir
from openforge.config import Loaded, render
from openforge.errors import InfraError, OpenForgeError
from openforge.redact import Redactor
from openforge.store.lists import list_runs
from openforge_tui import machine

_LOG_BYTES = 64 << 10
_RUNS = 5


def write_bundle(loaded: Loaded, dest: Path) -> list[str]:
    """Write `dest` (.tar.gz); returns what is in it. Raises InfraError when it cannot be written."""
    redact = Redactor()
    names = []
    try:
        with tarfile.open(dest, "x:gz") as archive:
            for name, text in _parts(loaded):
                data = redact.text(text).encode()
                about = tarfile.TarInfo(f"openforge-support/{name}")
                about.size, about.mtime = len(data), int(time.time())
                archive.addfile(about, io.BytesIO(data))
                names.append(name)
    except OSError as error:
        if not isinstance(error, FileExistsError):  # half a bundle is none
            with suppress(OSError):
                dest.unlink()
        raise InfraError(f"{dest}: {error.strerror or error}", hint="--to names another place") from None
    return names


def _parts(loaded: Loaded) -> Iterator[tuple[str, str]]:
    packages = sorted(f"{one.name}=={one.version}" for one in importlib.metadata.distributions())
    yield "versions.txt", "\n".join([f"Python {sys.version}", platform.platform(), *packages])
    yield "config.json", _json([row._asdict() for row in render.rows(loaded)])
    yield "doctor.json", _json(_told(lambda: [vars(one) for one in _doctor(loaded)]))
    yield "runs.json", _json(_told(lambda: list_runs(loaded.store_root)[:50]))
    runs = sorted((loaded.store_root / "runs").glob("*"), reverse=True)[:_RUNS]
    for run in runs:  # not those of harnesses: they print what models wrote
        for name in ("recorder.log", "trainer.log"):
            yield from _log(run / "logs" / name, f"runs/{run.name}/{name}")
    for path in sorted((cache_dir() / "servers").glob("*.log"))[-_RUNS:]:
        yield from _log(path, f"servers/{path.name}")
    for path in sorted((loaded.store_root / "desk").rglob("*.log"))[-_RUNS:]:
        yield from _log(path, f"desk/{path.relative_to(loaded.store_root / 'desk')}")


def _doctor(loaded: Loaded) -> list[machine.Finding]:
    return machine.findings(machine.survey(loaded.config, loaded.project_dir), loaded.config)


def _told(ask: Any) -> Any:
    """What could not be asked is itself worth reporting."""
    try:
        return ask()
    except OpenForgeError as error:
        return {"error": error.summary, "hint": error.hint}


def _log(path: Path, name: str) -> Iterator[tuple[str, str]]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_BYTES))
            yield name, file.read().decode(errors="replace")
    except OSError as error:
        yield f"{name}.missing", str(error)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, default=str)
