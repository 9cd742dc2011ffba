"""How much each row of a batch counts, so that one rollout weighs 1 in the loss however many rows it became."""

from collections import Counter
from collections.abc import Sequence


def row_weights(keys: Sequence[str], tokens: Sequence[int]) -> list[float]:
    """A factor for each row's advantages, for a loss that is the mean over all trained tokens of the batch.

    `keys` are veRL's, `{group}_{rollout}_{row}`; `tokens` are the trained ids of each row (0 for padding). With T
    trained tokens in N rollouts of the batch, the rows of a rollout with t of them get T / (N t): the loss is then the
    mean over rollouts of each one's mean over its tokens. A rollout that is alone in its group, the others being void,
    gets 0: it has nothing to be compared with.
    """
    rollouts = [key.rsplit("_", 1)[0] for key in keys]
    sizes: Counter[str] = Counter()
    for rollout, count in zip(rollouts, tokens, strict=True):
        sizes[rollout] += count
    real = {rollout for rollout, size in sizes.items() if size}
    groups = Counter(rollout.rsplit("_", 1)[0] for rollout in real)
    total, number = sum(sizes.values()), len(real)
    return [
        total / (number * sizes[rollout]) if rollout in real and groups[rollout.rsplit("_", 1)[0]] > 1 else 0.0
        for rollout in rollouts
    ]
