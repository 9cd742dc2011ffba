import json
from pathlib import Path

import pytest

from openforge.errors import ConfigError
from openforge_tui.vocabulary import Limits, model_limits, same_vocabularies
from proxy_addons.render.load import load_renderer, write_vocab
from tests.trainer.conftest import write_tokenizer


def test_limits_are_those_of_the_language_part(tmp_path: Path) -> None:
    sizes = {"vocab_size": 300, "max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    assert model_limits(tmp_path) == Limits(300, 64)
    (tmp_path / "config.json").write_text(json.dumps({"vision_config": {}, "text_config": sizes}))
    assert model_limits(tmp_path) == Limits(300, 64)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="does not say"):
        model_limits(tmp_path)


@pytest.mark.contract
def test_the_hash_is_the_one_that_the_recorder_writes(qwen3_dir: Path, tmp_path: Path) -> None:
    recorded = write_vocab(load_renderer(qwen3_dir), tmp_path / "vocab")
    (tmp_path / "vocab" / f"{recorded}.jsonl").unlink()  # so that only the hash can tell
    assert same_vocabularies(tmp_path, {recorded, "other"}, qwen3_dir) == {recorded}


def test_a_tokenizer_file_that_was_only_written_anew_is_the_same(tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path / "model")
    texts = _texts(model)
    vocab = tmp_path / "vocab"
    vocab.mkdir()
    for name, words in (("same", texts), ("longer", [*texts, "x"]), ("moved", [texts[1], texts[0], *texts[2:]])):
        lines = [json.dumps({"token_id": token, "text": text}) for token, text in enumerate(words)]
        (vocab / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    assert same_vocabularies(tmp_path, {"same", "longer", "moved", "gone"}, model) == {"same"}


def test_a_folder_without_a_tokenizer_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        same_vocabularies(tmp_path, set(), tmp_path)


def _texts(model: Path) -> list[str]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    ids = range(tokenizer.get_vocab_size(with_added_tokens=True))
    return [tokenizer.decode([token], skip_special_tokens=False) for token in ids]
