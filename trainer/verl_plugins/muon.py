"""Muon on the matrices, AdamW on everything else, as the one optimizer class that veRL asks for.

Select with `optim.optimizer_impl=trainer.verl_plugins.muon optim.optimizer=MuonAdamW`. Muon (Keller Jordan, 2024;
scale factor from Moonshot's "Muon is scalable", arXiv:2502.16982) is a step of one spectral size; on small models it
needs a quarter of AdamW's steps. Whole parameters only: FSDP over one rank, not shards.
"""

from collections.abc import Iterable
from typing import Any

import torch

_TABLE_RATIO = 8  # a matrix with 8 times more rows than columns is a table of embeddings: its rows are not mixed
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


class MuonAdamW(torch.optim.Optimizer):  # type: ignore[misc]
    """`lr` serves both: Muon's step is scaled to the root mean square size of an AdamW step."""

    def __init__(
        self,
        params: Iterable[torch.Tensor] | Iterable[dict[str, Any]],
        lr: float = 4e-3,
        betas: tuple[float, float] = (0.9, 0.98),
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        eps: float = 1e-8,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "momentum": momentum, "eps": eps}
        super().__init__(params, defaults)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> None:
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    weight, grad = _whole(parameter), _whole(parameter.grad)
                    if group["weight_decay"]:
                        weight.mul_(1 - group["lr"] * group["weight_decay"])
                    update = _muon if _is_matrix(weight) else _adamw
                    update(weight, grad, self.state[parameter], group)


def _whole(tensor: Any) -> torch.Tensor:
    """The local part of an FSDP2 parameter, which over one rank is all of it."""
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    if local.shape != tensor.shape:
        raise RuntimeError("MuonAdamW needs whole parameters: run FSDP over one rank")
    return local


def _is_matrix(weight: torch.Tensor) -> bool:
    return bool(weight.ndim == 2 and weight.shape[0] < _TABLE_RATIO * weight.shape[1])


def _muon(weight: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    if not state:
        state["average"] = torch.zeros_like(grad)
    average = state["average"].lerp_(grad, 1 - group["momentum"])
    direction = orthogonalize(grad.lerp(average, group["momentum"]))
    weight.add_(direction, alpha=-group["lr"] * 0.2 * max(weight.shape) ** 0.5)


def orthogonalize(matrix: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """The nearest matrix whose singular values are all about 1, by Newton-Schulz iterations; any (rows, columns)."""
    a, b, c = _NEWTON_SCHULZ
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = wide / (wide.norm() + 1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if wide is not matrix else x


def _adamw(weight: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    if not state:
        state.update(step=0, mean=torch.zeros_like(grad), square=torch.zeros_like(grad))
    state["step"] += 1
    beta1, beta2 = group["betas"]
    mean = state["mean"].lerp_(grad, 1 - beta1)
    square = state["square"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    scale = (square / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
    weight.addcdiv_(mean, scale, value=-group["lr"] / (1 - beta1 ** state["step"]))
