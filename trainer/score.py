"""Logprobs of recorded ids under the weights of one model folder, in float32 with transformers: no engine, no cache.

Each row is one pass through the model, of what its positions can see (see `attention_reach`): the numbers are those of
the whole row. Logits are made for the positions asked for alone, and no more at once than fit `_LOGITS`, whatever the
vocabulary is. Knows no samples, and not which weights are the right ones.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from openforge.errors import OpenForgeError
from trainer.rows import attention_reach

_LOGITS = 1 << 26  # float32 numbers at once: 256 MiB, and as much again for their sum


class Scorer:
    """The model in `model_dir`, on the GPU where there is one.

    `dtype`: what the policy was served in ("auto" = as saved): its weights are rounded to it, the arithmetic is float32
    all the same. `temperature`: what its logits were divided by when it was sampled; 0 (greedy) divides nothing. Raises
    OpenForgeError when the folder cannot be loaded.
    """

    def __init__(self, model_dir: Path, *, dtype: str = "float32", temperature: float = 1.0) -> None:
        disable_progress_bar()  # of reading the weights
        try:
            config = json.loads((model_dir / "config.json").read_bytes())
            model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype, local_files_only=True)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise OpenForgeError(f"{model_dir} cannot be loaded: {error}") from error
        self._reach = attention_reach(config)
        self._temperature = temperature or 1.0
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model = model.to(self._device, torch.float32).eval()
        self._vocab_size = int(model.get_input_embeddings().weight.shape[0])

    def score(self, ids: Sequence[int], positions: Sequence[int]) -> list[float]:
        """The logprob of the id at each of `positions` (rising, none is 0), given all ids before it.

        Raises OpenForgeError for an id that the model does not have.
        """
        if strange := [token for token in ids if not 0 <= token < self._vocab_size]:
            raise OpenForgeError(f"the model has no id {strange[0]}, it has {self._vocab_size}")
        return [value for part in self._parts(positions) for value in self._score(ids, part)]

    def _parts(self, positions: Sequence[int]) -> Iterator[Sequence[int]]:
        size = max(1, _LOGITS // self._vocab_size)
        return (positions[start : start + size] for start in range(0, len(positions), size))

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def _score(self, ids: Sequence[int], positions: Sequence[int]) -> list[float]:
        start = 0 if self._reach is None else max(0, positions[0] - 1 - self._reach)
        end = positions[-1]  # the last id is scored, and nothing is asked of what it would say itself
        logits = self._model(
            input_ids=torch.tensor([ids[start:end]], device=self._device),
            position_ids=torch.arange(start, end, device=self._device)[None],
            use_cache=False,
            logits_to_keep=torch.tensor([position - 1 - start for position in positions], device=self._device),
        ).logits[0]
        logits /= self._temperature
        said = torch.tensor([ids[position] for position in positions], device=self._device)
        scores: list[float] = (logits.gather(1, said[:, None])[:, 0] - logits.logsumexp(1)).tolist()
        return scores
