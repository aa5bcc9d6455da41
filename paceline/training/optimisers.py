"""How weights are stepped: matrices by Muon (Jordan et al. 2024), an embedding and the norms by
AdamW.

Muon's step is the momentum made orthogonal. torch's own does that in bfloat16, which takes longer
than all the rest of a step on a processor without such instructions; here it is float32 there, and
matrices of one shape go together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from paceline.cpu import amx, avx512_dot

_MOMENTUM, _DECAY = 0.95, 0.05
_COEFFICIENTS, _ROUNDS = (3.4445, -4.7750, 2.0315), 5  # of the Newton-Schulz iteration
_ADAM_SIZE = 0.2  # root mean square of AdamW's steps, which Muon's get (Liu et al. 2025)


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum, for matrices alone."""

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Step along the gradients."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                by_shape[parameter.shape].append(parameter)
            for shape, parameters in by_shape.items():
                wanted = orthogonal(
                    torch.stack([self._momentum(parameter) for parameter in parameters])
                )
                for parameter, direction in zip(parameters, wanted, strict=True):
                    parameter.mul_(1 - group["lr"] * _DECAY)
                    parameter.add_(direction, alpha=-group["lr"] * _ADAM_SIZE * max(shape) ** 0.5)

    def _momentum(self, parameter: Tensor) -> Tensor:
        state: dict[str, Any] = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        gradient = parameter.grad
        assert gradient is not None, "step without backward"
        state["momentum"].lerp_(gradient, 1 - _MOMENTUM)
        return torch.lerp(gradient, state["momentum"], _MOMENTUM)


def orthogonal(matrices: Tensor) -> Tensor:
    """Return about the nearest matrices [n, rows, columns] whose singular values are 1 (0.7 to
    1.2).
    """
    tall = matrices.shape[1] > matrices.shape[2]
    found = matrices.mT if tall else matrices
    found = (found / (found.norm(dim=(1, 2), keepdim=True) + 1e-12)).to(product_dtype(found.device))
    a, b, c = _COEFFICIENTS
    for _ in range(_ROUNDS):
        gram = found @ found.mT
        found = a * found + (b * gram + c * gram @ gram) @ found
    made: Tensor = (found.mT if tall else found).float()
    return made


def product_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of a training's products: bfloat16 where these are fast; weights and
    their steps are float32.
    """
    return (
        torch.bfloat16
        if device.type == "cuda" or amx.available() or avx512_dot.available()
        else torch.float32
    )


class Optimisers:
    """Both of them over the weights of a draft.

    Attributes:
        each: the optimisers.
    """

    def __init__(self, model: PreTrainedModel, lr: float, embedding_lr: float) -> None:
        inner: Any = model.get_decoder()
        first = inner.get_input_embeddings()
        tables = [first.weight] if isinstance(first, torch.nn.Embedding) else []
        known = {id(table) for table in tables}
        matrices = [
            weight for weight in model.parameters() if weight.ndim == 2 and id(weight) not in known
        ]
        norms = [weight for weight in model.parameters() if weight.ndim == 1]
        groups: list[dict[str, Any]] = [{"params": norms}, {"params": tables, "lr": embedding_lr}]
        adam = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
        self.each: tuple[torch.optim.Optimizer, ...] = (Muon(matrices, lr), adam)
        self._highest = [[group["lr"] for group in one.param_groups] for one in self.each]

    def step(self, share: float) -> None:
        """Step with that share of the highest rates, and forget the gradients."""
        for one, highest in zip(self.each, self._highest, strict=True):
            for group, lr in zip(one.param_groups, highest, strict=True):
                group["lr"] = share * lr
            one.step()
            one.zero_grad()

    def tensors(self) -> dict[str, Tensor]:
        """Return everything they remember, by name."""
        return {
            f"{place}.{weight}.{name}": torch.as_tensor(value)
            for place, one in enumerate(self.each)
            for weight, values in one.state_dict()["state"].items()
            for name, value in values.items()
        }

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Remember what `tensors` gave."""
        for place, one in enumerate(self.each):
            state: dict[int, dict[str, Tensor]] = defaultdict(dict)
            for key, value in tensors.items():
                number, weight, name = key.split(".", 2)
                if int(number) == place:
                    state[int(weight)][name] = value
            one.load_state_dict(
                {"state": dict(state), "param_groups": one.state_dict()["param_groups"]}
            )
