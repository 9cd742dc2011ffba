import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from openforge.errors import OpenForgeError
from trainer.starter.cut import Row, blur, cut_row, cut_tokenizer, renumber

TEXT = "<|im_start|>hello world she <tool_call>hell</tool_call><|im_end|>"


def load(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_recorded_text_splits_exactly_as_before(tokenizer_dir: Path, tmp_path: Path) -> None:
    whole = load(tokenizer_dir)
    ids = whole.encode(TEXT).ids
    new_ids = cut_tokenizer(tokenizer_dir, ids, tmp_path / "cut", first_merges=1)
    cut = load(tmp_path / "cut")
    assert cut.get_vocab_size() == len(new_ids) < whole.get_vocab_size()
    assert cut.encode(TEXT).ids == [new_ids[number] for number in ids]
    assert cut.decode(cut.encode(TEXT).ids, skip_special_tokens=False) == TEXT


def test_a_kept_id_stands_for_the_same_text(tokenizer_dir: Path, tmp_path: Path) -> None:
    whole = load(tokenizer_dir)
    new_ids = cut_tokenizer(tokenizer_dir, whole.encode(TEXT).ids, tmp_path / "cut", first_merges=0)
    cut = load(tmp_path / "cut")
    assert sorted(new_ids.values()) == list(range(len(new_ids)))
    assert all(whole.id_to_token(old) == cut.id_to_token(new) for old, new in new_ids.items())


def test_text_that_was_not_recorded_still_encodes(tokenizer_dir: Path, tmp_path: Path) -> None:
    cut_tokenizer(tokenizer_dir, [], tmp_path / "cut", first_merges=0)
    cut = load(tmp_path / "cut")
    fresh = "Grüße, ell & 你好 <|im_end|>"
    assert cut.decode(cut.encode(fresh).ids, skip_special_tokens=False) == fresh


def test_special_tokens_keep_their_place_in_the_config(tokenizer_dir: Path, tmp_path: Path) -> None:
    new_ids = cut_tokenizer(tokenizer_dir, [], tmp_path / "cut", first_merges=0)
    config = json.loads((tmp_path / "cut" / "tokenizer_config.json").read_text())
    by_text = {entry["content"]: int(number) for number, entry in config["added_tokens_decoder"].items()}
    cut = load(tmp_path / "cut")
    assert by_text == {text: cut.token_to_id(text) for text in by_text}
    assert set(by_text.values()) <= set(new_ids.values())


def test_an_id_that_the_cut_was_not_told_of_is_refused(tokenizer_dir: Path, tmp_path: Path) -> None:
    hello = load(tokenizer_dir).token_to_id("hello")
    new_ids = cut_tokenizer(tokenizer_dir, [], tmp_path / "cut", first_merges=0)
    with pytest.raises(OpenForgeError, match=str(hello)):
        renumber(Row([hello], [1]), new_ids)


@given(first=st.integers(1, 60), more=st.integers(0, 20), layers=st.integers(1, 3), window=st.integers(2, 12))
def test_only_what_cannot_be_seen_is_cut(first: int, more: int, layers: int, window: int) -> None:
    row = Row(list(range(first + 1 + more)), [0] * first + [1] * (1 + more))
    cut = cut_row(row, layers, window)
    assert cut.input_ids[-1 - more :] == row.input_ids[first:]
    assert sum(cut.loss_mask) == sum(row.loss_mask)
    seen = len(cut.loss_mask) - sum(cut.loss_mask)  # tokens before the first learned one
    assert seen == min(first, 1 + layers * (window - 1))


def test_blur_touches_only_what_is_not_learned() -> None:
    row = Row([500] * 4000, [0, 1] * 2000)
    blurred = blur(row, 0.1, 300, random.Random(0))
    changed = [place for place, token in enumerate(blurred.input_ids) if token != 500]
    assert blurred.loss_mask == row.loss_mask
    assert all(row.loss_mask[place] == 0 and blurred.input_ids[place] < 300 for place in changed)
    assert 150 < len(changed) < 250
    assert blur(row, 0.0, 300, random.Random(0)) == row
