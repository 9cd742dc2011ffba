"""A small tokenizer with Qwen3's special tokens, so that no test needs the network."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

_ADDED = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
_MERGES = ("h e", "l l", "he ll", "hell o", "w o", "wo r", "l d", "wor ld", "s h", "sh e", "e l", "el l")


def _byte_pieces() -> list[str]:
    """The 256 printable stand-ins for bytes, in byte-level BPE's order (GPT-2)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [number for number in range(256) if number not in plain]
    shifted = {number: chr(256 + place) for place, number in enumerate(hidden)}
    return [shifted.get(number, chr(number)) for number in [*plain, *hidden]]


def write_tokenizer(folder: Path) -> Path:
    """A byte-level BPE folder laid out as Qwen3's: bytes first, then merges in rank order, then added tokens."""
    pairs = [merge.split(" ") for merge in _MERGES]
    pieces = [*_byte_pieces(), *(left + right for left, right in pairs)]
    first_added = len(pieces)
    token = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": first_added + place, "content": text, **token} for place, text in enumerate(_ADDED)]
    byte_level: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {piece: place for place, piece in enumerate(pieces)},
            "merges": pairs,
        },
    }
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    decoder = {str(entry["id"]): {"content": entry["content"]} for entry in added}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "added_tokens_decoder": decoder}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}", encoding="utf-8")
    return folder


def write_toy_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An untrained two-layer model in the new folder, with that tokenizer; needs the train set."""
    from trainer.starter.cut import cut_tokenizer
    from trainer.starter.model import Shape, write_untrained

    monkeypatch.setattr("trainer.starter.model.END_OF_TEXT", 268)
    monkeypatch.setattr("trainer.starter.model.END_OF_TURN", 270)
    source = write_tokenizer(folder.with_name(f"{folder.name}-tokenizer"))
    cut = folder.with_name(f"{folder.name}-cut")
    write_untrained(folder, cut, cut_tokenizer(source, [], cut), Shape(hidden=32, heads=2, window=8), seed=0)
    return folder


def write_other_weights(source: Path, dest: Path, seed: int, scale: float) -> Path:
    """The model of `source` with noise on every weight, in the new folder `dest`; needs the train set."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source, dtype="float32")
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += scale * torch.randn_like(weight)
    shutil.copytree(source, dest)
    model.save_pretrained(dest)
    return dest


@pytest.fixture
def tokenizer_dir(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "tokenizer")


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A maker of toy steps: rollouts and updates to a `Step`. Who asks for it has this folder on sys.path."""
    import transfer_queue as tq
    from queue_in_memory import Queue
    from toy_step import ROLLOUTS, Step

    queue = Queue()
    monkeypatch.setattr(tq, "kv_batch_get", queue.kv_batch_get)
    monkeypatch.setattr(tq, "kv_batch_put", queue.kv_batch_put)
    return lambda rollouts=ROLLOUTS, updates=1: Step(queue, rollouts, updates)
