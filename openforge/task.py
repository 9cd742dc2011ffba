"""Tasks in Harbor's layout, read unchanged: what to do, how the start files are made, how the result is judged.

A task is a folder: `task.toml`, `instruction.md`, `environment/`, `tests/test.sh`, `solution/solve.sh`. The optional
`[openforge]` table adds what a plain sandbox needs to know; it is strict, Harbor's own tables are not. This module
reads and hashes; it runs nothing.
"""

import difflib
import hashlib
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from openforge.errors import ConfigError, UsageError

BUILTIN_ROOT = Path(__file__).resolve().parent.parent / "tasks"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_INSTRUCTION_BYTES = 100_000  # the kernel takes 128 KiB in one argument, and a harness may put words around it
_SKIP = {"__pycache__", ".git", ".DS_Store"}


class _Harbor(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Verifier(_Harbor):
    timeout_sec: float = Field(default=600.0, gt=0)


class _Agent(_Harbor):
    timeout_sec: float | None = Field(default=None, gt=0)


class _OpenForge(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    setup: str | None = None
    skills: tuple[str, ...] = ()
    gui: bool = False
    egress_allow: tuple[str, ...] = ()


class _TaskFile(_Harbor):
    version: str = "1.0"
    metadata: dict[str, Any] = Field(default_factory=dict)
    verifier: _Verifier = _Verifier()
    agent: _Agent = _Agent()
    openforge: _OpenForge = _OpenForge()


@dataclass(frozen=True)
class Task:
    """One task. Paths are absolute, inside `root`; `skills` are folders relative to the work folder after setup."""

    name: str
    set_name: str
    root: Path
    instruction: str
    metadata: dict[str, Any]
    verifier_timeout_s: float
    agent_timeout_s: float | None
    setup: Path | None
    skills: tuple[str, ...]
    egress_allow: tuple[str, ...]
    gui: bool

    @property
    def ref(self) -> str:
        """What a person types to get this task."""
        return f"{self.set_name}/{self.name}"

    @property
    def tests(self) -> Path:
        return self.root / "tests"

    @property
    def dockerfile(self) -> Path | None:
        """What makes its image, with the start files in it; None for a task whose setup makes them on ours."""
        file = self.root / "environment" / "Dockerfile"
        return file if self.setup is None and file.is_file() else None

    @property
    def solution(self) -> Path:
        return self.root / "solution" / "solve.sh"

    def near_misses(self) -> list[Path]:
        """Plausible but wrong solutions; each must score 0."""
        return sorted((self.root / "solution").glob("near-miss*.sh"))

    def content_hash(self) -> str:
        """32 hex characters over every file's path, executable bit and bytes."""
        digest = hashlib.blake2b(digest_size=16)
        for path in _files(self.root):
            data = path.read_bytes()
            executable = bool(path.stat().st_mode & 0o100)
            digest.update(f"{path.relative_to(self.root).as_posix()}\0{int(executable)}\0{len(data)}\0".encode())
            digest.update(data)
        return digest.hexdigest()


def read_task(root: Path) -> Task:
    """Read one task folder. Raises ConfigError that names the file and what is wrong with it."""
    root = root.resolve()
    file = root / "task.toml"
    try:
        parsed = _TaskFile.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
        instruction = (root / "instruction.md").read_text(encoding="utf-8").strip()
    except FileNotFoundError as error:
        raise ConfigError(
            f"task {root.name}: {error.filename} is missing",
            hint="a task needs task.toml, instruction.md and tests/test.sh",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{file}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if "\0" in instruction or len(instruction.encode()) > _INSTRUCTION_BYTES:
        raise ConfigError(
            f"{root / 'instruction.md'} cannot be handed to a program: it holds a NUL or more than "
            f"{_INSTRUCTION_BYTES:,} bytes",
            hint="put long material into a file that environment/setup.sh makes",
        )
    if not _NAME.fullmatch(root.name):
        raise ConfigError(f"task folder {root.name!r} may hold only a-z, 0-9, '-' and '_'", hint="rename the folder")
    if not (root / "tests" / "test.sh").is_file():
        raise ConfigError(
            f"task {root.name}: {root / 'tests' / 'test.sh'} is missing", hint="test.sh writes the reward"
        )
    extra = parsed.openforge
    return Task(
        name=root.name,
        set_name=root.parent.name,
        root=root,
        instruction=instruction,
        metadata=parsed.metadata,
        verifier_timeout_s=parsed.verifier.timeout_sec,
        agent_timeout_s=parsed.agent.timeout_sec,
        setup=None if extra.setup is None else _inside(root, extra.setup, file),
        skills=extra.skills,
        egress_allow=extra.egress_allow,
        gui=extra.gui,
    )


def load_tasks(refs: Sequence[str], roots: Sequence[Path] = (BUILTIN_ROOT,)) -> list[Task]:
    """The tasks that `refs` name, in that order, each once.

    A ref is a set (`desk`), a task (`desk/count-lines`, or `count-lines` when one set has it) or a folder (holding one
    task or several). Raises UsageError for a ref that names nothing, or two tasks, and for two different tasks of one
    name, since rollout ids carry the task's name only.
    """
    found: dict[str, Task] = {}
    for ref in refs:
        for folder in _folders(ref, roots):
            task = read_task(folder)
            other = found.setdefault(task.name, task)
            if other.root != task.root:
                raise UsageError(
                    f"two tasks are called {task.name!r}: {other.root} and {task.root}",
                    hint="run them in two runs, or rename one",
                )
    return list(found.values())


def list_sets(roots: Sequence[Path] = (BUILTIN_ROOT,)) -> list[str]:
    """Names of the task sets below `roots`."""
    names = {
        path.parent.name for root in roots if root.is_dir() for entry in root.iterdir() for path in _tasks_in(entry)
    }
    return sorted(names)


def _folders(ref: str, roots: Sequence[Path]) -> list[Path]:
    candidates = [root / ref for root in roots] + [Path(ref).expanduser()]
    for candidate in candidates:
        folders = _tasks_in(candidate)
        if folders:
            return folders
    named = [path for root in roots for path in root.glob("*/*/task.toml") if path.parent.name == ref]
    if len(named) == 1:
        return [named[0].parent]
    known = [f"{path.parent.parent.name}/{path.parent.name}" for root in roots for path in root.glob("*/*/task.toml")]
    if named:
        both = sorted(name for name in known if name.endswith(f"/{ref}"))
        raise UsageError(f"{ref!r} is a task of several sets", hint=f"one of {', '.join(both)}")
    bare = {name.rpartition("/")[2]: name for name in known}
    near = difflib.get_close_matches(ref, [*known, *list_sets(roots), *bare], n=1)
    sets = ", ".join(list_sets(roots)) or "none"
    raise UsageError(
        f"no task or task set is called {ref!r}",
        hint=f"did you mean {bare.get(near[0], near[0])}?"
        if near
        else f"task sets: {sets}; `openforge tasks list` shows the tasks",
    )


def _tasks_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    if (folder / "task.toml").is_file():
        return [folder]
    return sorted(child for child in folder.iterdir() if (child / "task.toml").is_file())


def _inside(root: Path, relative: str, file: Path) -> Path:
    path = (root / relative).resolve()
    if not path.is_relative_to(root):
        raise ConfigError(f"{file}: {relative!r} points outside the task's folder")
    if not path.exists():
        raise ConfigError(f"{file}: {relative!r} does not exist")
    return path


def _files(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*")):
        if path.is_file() and not _SKIP & set(path.relative_to(root).parts):
            yield path
