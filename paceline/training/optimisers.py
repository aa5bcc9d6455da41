"""Optimise matrices with Muon (Jordan et al. 2024), and other weights with AdamW.

torch's implementation of Muon orthogonalises matrices in bfloat16, which is slow on processors
without bfloat16 instructions. This implementation uses float32 on such processors, and
orthogonalises matrices of the same shape together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.cpu import amx, avx512_dot
from paceline.training import settings


class Muon(Optimizer):
    """Updates each matrix with its orthogonalised Nesterov momentum."""

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update the weights once, using the current gradients."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                by_shape[parameter.shape].append(parameter)
            for shape, parameters in by_shape.items():
                directions = orthogonal(
                    torch.stack([self._momentum(parameter) for parameter in parameters])
                )
                step = -group["lr"] * settings.MUON_STEP_RMS * max(shape) ** 0.5
                for parameter, direction in zip(parameters, directions, strict=True):
                    parameter.mul_(1 - group["lr"] * settings.MUON_WEIGHT_DECAY)
                    parameter.add_(direction, alpha=step)

    def _momentum(self, parameter: Tensor) -> Tensor:
        state: dict[str, Any] = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        gradient = parameter.grad
        assert gradient is not None, "step without backward"
        state["momentum"].lerp_(gradient, 1 - settings.MUON_MOMENTUM)
        return torch.lerp(gradient, state["momentum"], settings.MUON_MOMENTUM)


def orthogonal(matrices: Tensor) -> Tensor:
    """Approximate the nearest orthogonal matrices with Newton-Schulz iterations.

    The singular values of the results are between 0.7 and 1.2.

    Args:
        matrices: Matrices to orthogonalise, [n, rows, columns].
    """
    tall = matrices.shape[1] > matrices.shape[2]
    wide = matrices.mT if tall else matrices
    wide = (wide / (wide.norm(dim=(1, 2), keepdim=True) + 1e-12)).to(product_dtype(wide.device))
    a, b, c = settings.NEWTON_SCHULZ_COEFFICIENTS
    for _ in range(settings.NEWTON_SCHULZ_ROUNDS):
        gram = wide @ wide.mT
        wide = a * wide + (b * gram + c * gram @ gram) @ wide
    result: Tensor = (wide.mT if tall else wide).float()
    return result


def product_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype for matrix products in training.

    The dtype is bfloat16 on devices with fast bfloat16 products, and float32 otherwise. Weights and
    optimiser steps always use float32.
    """
    fast = device.type == "cuda" or amx.available() or avx512_dot.available()
    return torch.bfloat16 if fast else torch.float32


def model_optimisers(
    model: nn.Module, lr: float, embedding_lr: float
) -> tuple[Muon, torch.optim.AdamW]:
    """Return Muon for the matrices of a model, and AdamW for its embedding and norms.

    Args:
        model: Model to train. Weights that require no gradient are excluded.
        lr: Peak learning rate for matrices and norms.
        embedding_lr: Peak learning rate for the embedding.
    """
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    table_ids = {id(embedding.weight) for embedding in embeddings}
    tables = [weight for weight in weights if id(weight) in table_ids]
    matrices = [weight for weight in weights if weight.ndim == 2 and id(weight) not in table_ids]
    norms = [weight for weight in weights if weight.ndim == 1]
    groups: list[dict[str, Any]] = [{"params": norms}, {"params": tables, "lr": embedding_lr}]
    adam = torch.optim.AdamW(groups, lr=lr, betas=settings.ADAM_BETAS, weight_decay=0.0, fused=True)
    return Muon(matrices, lr), adam


def state_tensors(optimisers: Sequence[Optimizer]) -> dict[str, Tensor]:
    """Return the state of several optimisers, as tensors by name."""
    return {
        f"{number}.{weight}.{name}": torch.as_tensor(value)
        for number, optimiser in enumerate(optimisers)
        for weight, values in optimiser.state_dict()["state"].items()
        for name, value in values.items()
    }


def restore_state(optimisers: Sequence[Optimizer], tensors: Mapping[str, Tensor]) -> None:
    """Restore the state of optimisers from the result of `state_tensors`."""
    for number, optimiser in enumerate(optimisers):
        state: dict[int, dict[str, Tensor]] = defaultdict(dict)
        for key, value in tensors.items():
            owner, weight, name = key.split(".", 2)
            if int(owner) == number:
                state[int(weight)][name] = value
        groups = optimiser.state_dict()["param_groups"]
        optimiser.load_state_dict({"state": dict(state), "param_groups": groups})
