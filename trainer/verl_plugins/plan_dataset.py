"""veRL data set of groups to roll out: which task, in which harness, from which start files. No prompt text: the
harness writes the prompt.

Reads a file of JSON lines, one group a line, in the order they are to be trained; see trainer/plan.py. A group with
`agent` goes to the agent loop of that name in veRL's register, any other to ours.
"""

from collections.abc import Sequence
from typing import Any

import orjson
from torch.utils.data import Dataset


class PlanDataset(Dataset[dict[str, Any]]):  # type: ignore[misc]
    def __init__(
        self,
        data_files: str | Sequence[str],
        tokenizer: object = None,
        config: object = None,
        processor: object = None,
        max_samples: int = -1,
    ) -> None:
        files = [data_files] if isinstance(data_files, str) else list(data_files)
        self.groups: list[dict[str, Any]] = []
        for file in files:
            with open(file, "rb") as lines:
                self.groups += [orjson.loads(line) for line in lines]

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, index: int) -> dict[str, Any]:
        group = self.groups[index]
        return {
            "index": index,
            "agent_name": group.get("agent", "openforge"),
            "data_source": group["harness"],
            "raw_prompt": [{"role": "user", "content": group["task"]}],
            "reward_model": {"ground_truth": ""},  # the task's verifier knows
            "extra_info": group,
        }
