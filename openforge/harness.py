"""Harness manifests: all that OpenForge knows about one agent harness, from `harness_images/<name>/harness.toml`.

A manifest pins the version, says how to install it, the command line, environment and config files, which model API
dialects it speaks and how it tells who is calling. Placeholders such as `{base_url}` are filled in per rollout by
`HarnessManifest.launch`; nothing here starts a process.
"""

import difflib
import hashlib
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from openforge.errors import ConfigError, UsageError

BUILTIN_ROOT = Path(__file__).resolve().parent.parent / "harness_images"
_PLACEHOLDER = re.compile(r"\{(instruction|model|base_url|api_key|home|work|harness_dir|bin|proxy_url)\}")


def _stays_inside(path: str) -> str:
    steps = PurePosixPath(path)
    if not steps.parts or steps.is_absolute() or ".." in steps.parts or "\0" in path:
        raise ValueError("must be a relative path without '..'")
    return path


_Inside = Annotated[str, AfterValidator(_stays_inside)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Install(_Table):
    """How the harness comes onto a machine; `bin` with the arguments `check` must print the pinned version."""

    kind: Literal["none", "npm", "pip"] = "none"
    packages: tuple[str, ...] = ()
    node: str = ""
    bin: str = ""
    check: tuple[str, ...] = ("--version",)


class ConfigFileSpec(_Table):
    """A file written before the start: `path` relative to the home folder, `template` beside the manifest."""

    path: _Inside
    template: _Inside


class RunSpec(_Table):
    argv: tuple[str, ...]
    env: dict[str, str] = Field(default_factory=dict)
    exit_ok: tuple[int, ...] = (0,)
    exit_meaning: dict[str, str] = Field(default_factory=dict)
    trust_exit_code: bool = True


class Identity(_Table):
    """How the rollout's token travels: in the base URL's path, as the API key, or as the proxy's user name."""

    via: Literal["path", "key", "proxy"] = "path"


class Ca(_Table):
    env: tuple[str, ...] = ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


class Skills(_Table):
    dir: _Inside = ".agents/skills"


class History(_Table):
    append_only: bool = True
    rewrites: tuple[str, ...] = ()


class Limits(_Table):
    start_s: Annotated[float, Field(gt=0)] = 60
    memory_mb: Annotated[int, Field(gt=0)] = 1024


class Launch(BaseModel):
    """What to run, every placeholder filled in. `files` maps a path below the home folder to its text."""

    model_config = ConfigDict(frozen=True)

    argv: tuple[str, ...]
    env: dict[str, str]
    files: dict[str, str]


class _ManifestFile(_Table):
    name: str
    version: str
    summary: str = ""
    dialects: tuple[str, ...]
    install: Install = Install()
    run: RunSpec
    files: tuple[ConfigFileSpec, ...] = ()
    identity: Identity = Identity()
    ca: Ca = Ca()
    skills: Skills = Skills()
    history: History = History()
    limits: Limits = Limits()


@dataclass(frozen=True)
class HarnessManifest:
    """One harness; `root` is its folder, `spec` what its manifest says, `templates` the files it writes."""

    root: Path
    spec: _ManifestFile
    templates: dict[str, str]

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def version(self) -> str:
        return self.spec.version

    def content_hash(self) -> str:
        """32 hex characters over the folder's files: name, version and configuration together."""
        digest = hashlib.blake2b(digest_size=16)
        for path in sorted(self.root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(path.relative_to(self.root).as_posix().encode() + b"\0")
                digest.update(path.read_bytes() + b"\0")
        return digest.hexdigest()

    def launch(self, values: dict[str, str]) -> Launch:
        """Fill the placeholders; a value is inserted as it is and not looked at again, so it may hold braces."""
        spec = self.spec
        return Launch(
            argv=tuple(_fill(arg, values) for arg in spec.run.argv),
            env={key: _fill(value, values) for key, value in spec.run.env.items()},
            files={_fill(path, values): _fill(text, values) for path, text in self.templates.items()},
        )

    def failed(self, exit_code: int) -> bool:
        """Whether the harness itself says that it did not finish its work."""
        return self.spec.run.trust_exit_code and exit_code not in self.spec.run.exit_ok

    def exit_meaning(self, exit_code: int) -> str:
        return self.spec.run.exit_meaning.get(str(exit_code), f"exit code {exit_code}")


def harness_roots(project: Path) -> tuple[Path, ...]:
    """Where a name is looked for: the project's own `harness_images`, then ours."""
    return (project.resolve() / "harness_images", BUILTIN_ROOT)


def list_harnesses(roots: Sequence[Path] = (BUILTIN_ROOT,)) -> list[str]:
    """Names of the harnesses that have a manifest."""
    return sorted({path.parent.name for root in roots for path in root.glob("*/harness.toml")})


def load_harness(name: str, roots: Sequence[Path] = (BUILTIN_ROOT,)) -> HarnessManifest:
    """Read one manifest, by name or by its folder (a path with a `/`). UsageError when there is none, ConfigError when
    it is wrong."""
    folders = [Path(name).expanduser().resolve()] if "/" in name else [root / name for root in roots]
    root = next((folder for folder in folders if (folder / "harness.toml").is_file()), None)
    if root is None:
        known = list_harnesses(roots)
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        raise UsageError(f"no harness is called {name!r}", hint=hint)
    file = root / "harness.toml"
    try:
        spec = _ManifestFile.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
        templates = {entry.path: (root / entry.template).read_text(encoding="utf-8") for entry in spec.files}
    except (tomllib.TOMLDecodeError, OSError) as error:
        raise ConfigError(f"{file}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{file}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if spec.name != root.name:
        raise ConfigError(f"{file}: name is {spec.name!r} but the folder is {root.name!r}")
    return HarnessManifest(root=root, spec=spec, templates=templates)


def _fill(text: str, values: dict[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: values[match[1]], text)
