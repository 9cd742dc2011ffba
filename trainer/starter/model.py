"""The starter's shape: a Qwen3 of 2 layers and 128 channels whose every layer sees a short sliding window.

A stock Qwen3 configuration, so that transformers, vLLM and veRL take it unchanged. Writes an untrained model folder.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

END_OF_TEXT, END_OF_TURN = 151_643, 151_645  # Qwen3's ids of <|endoftext|> and <|im_end|>


@dataclass(frozen=True)
class Shape:
    """Sizes of the model; `window` is in tokens, for each layer."""

    layers: int = 2
    hidden: int = 128
    heads: int = 4
    window: int = 160
    max_positions: int = 32_768


def write_untrained(dest: Path, tokenizer: Path, new_ids: dict[int, int], shape: Shape, seed: int) -> None:
    """Random weights from `seed` with the cut tokenizer beside them; `new_ids` maps Qwen3's ids to the cut's."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    end_of_turn, end_of_text = new_ids[END_OF_TURN], new_ids[END_OF_TEXT]
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(new_ids),
        hidden_size=shape.hidden,
        intermediate_size=3 * shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads // 2,
        head_dim=32,
        max_position_embeddings=shape.max_positions,
        tie_word_embeddings=True,
        use_sliding_window=True,
        sliding_window=shape.window,
        max_window_layers=0,  # all layers slide: vLLM refuses a mix, and cut_row relies on it
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        eos_token_id=end_of_turn,
        pad_token_id=end_of_text,
        bos_token_id=None,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config).float()
    model.generation_config.eos_token_id = [end_of_turn, end_of_text]
    model.generation_config.pad_token_id = end_of_text
    disable_progress_bar()  # of writing four megabytes
    model.save_pretrained(dest)
    for file in tokenizer.iterdir():
        shutil.copyfile(file, dest / file.name)
