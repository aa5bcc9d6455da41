"""Train foresight: cross-entropy with what the target says one and two places on (EAGLE, Li et al.
2024, without attention).

It begins as the linear map of least squares. The second place is guessed from what the first guess
made of the state, as it is in use. Inputs are scaled to unit size meanwhile; the weights that are
kept take them as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from paceline.draft_head.guessing import DraftHead
from paceline.draft_head.weights import Weights, ends
from paceline.errors import ConfigError
from paceline.model.cached_lm import CachedLM
from paceline.report.progress import progress_bar
from paceline.training.draft_head.settings import DraftHeadTraining
from paceline.training.draft_head.states import AHEAD, States
from paceline.training.optimisers import product_dtype

_SECOND = 0.3  # weight of the second place's loss
_DECAY, _WARM_UP = 0.01, 0.1  # of AdamW; share of the steps until the highest rate
_RIDGE = 200.0  # places whose inputs are of average size, and whose next state is 0
_TOGETHER = 4096  # places of a piece where no gradient is wanted
_AMONG = 8  # guesses that are judged, besides the first


@dataclass(frozen=True, slots=True)
class DraftHeadReport:
    """On answers held back. Attributes:

    places: of them. first: share of places, by how far ahead, whose token is the first guess.
    among: is among the first eight.
    """

    places: int
    first: tuple[float, ...]
    among: tuple[float, ...]

    def __str__(self) -> str:
        """In words."""
        shares = [
            f"{one:.1%} / {eight:.1%}" for one, eight in zip(self.first, self.among, strict=True)
        ]
        return (
            f"{', '.join(shares)} of tokens guessed 1, 2 places ahead (first guess / first"
            f" {_AMONG})"
        )


class DraftHeadTrainer:
    """Foresight while it is trained.

    Args:
        learnt: what it learns from. held_out: answers that judge it.
    Raises:
        ConfigError: too little to learn from.
    """

    def __init__(
        self, model: CachedLM, learnt: States, held_out: States, config: DraftHeadTraining
    ) -> None:
        if len(learnt.places) < config.batch or not len(held_out.answers):
            raise ConfigError(
                f"draft-head train: got {len(learnt.places)} places to learn from, and"
                f" {len(held_out.answers)} of answers held back; expected at least {config.batch},"
                " a batch, and one. Record more."
            )
        self._model, self._learnt, self._held_out, self._config = model, learnt, held_out, config
        self._random = torch.Generator().manual_seed(config.seed)
        embedding, head = ends(model)
        self._device, self._embedding = model.device, embedding.weight.detach()
        self._kept = commonest(learnt, config.kept, len(head.weight))
        self._dtype = product_dtype(self._device)
        self._head = head.weight.detach()[self._kept.to(self._device)].to(self._dtype)
        self._head_bias = (
            None if head.bias is None else head.bias.detach()[self._kept.to(self._device)].float()
        )
        self._scales = _size(learnt.states), _size(self._embedding)
        hidden, inputs = head.in_features, head.in_features + embedding.embedding_dim
        inner = (
            torch.randn(config.neurons, inputs + 1, generator=self._random) / (inputs + 1) ** 0.5
        )
        self._direct = self._least_squares(inputs + 1, hidden).requires_grad_()
        self._inner = inner.to(self._device).requires_grad_()
        self._outer = torch.zeros(hidden, config.neurons, device=self._device, requires_grad=True)

    def run(self, judged: Callable[[int, DraftHeadReport], None], progress: bool = False) -> None:
        """Train.

        Args:
            judged: called before the first epoch and behind each, with its number and what the
                head predicts.
        """
        config = self._config
        parameters = [self._direct, self._inner, self._outer]
        optimiser = torch.optim.AdamW(parameters, lr=config.lr, weight_decay=_DECAY)
        each = len(self._learnt.places) // config.batch
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimiser, config.lr, total_steps=config.epochs * each + 1, pct_start=_WARM_UP
        )
        judged(0, self.judge())
        with progress_bar(shown=progress) as bar:
            task = bar.add_task("training", total=config.epochs * each)
            for epoch in range(config.epochs):
                for places in self._batches():
                    loss = self._loss(places)
                    if not torch.isfinite(loss):
                        raise ConfigError(
                            f"draft-head train: lr: got {config.lr:g}, and a loss that is not"
                            " finite; expected less. Lower it."
                        )
                    optimiser.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimiser.step()
                    schedule.step()
                    bar.advance(task)
                judged(epoch + 1, self.judge())

    def weights(self) -> Weights:
        """Return the weights as they are now, for inputs that are not scaled."""
        first = torch.cat((self._direct, self._inner)).detach().clone()
        hidden = len(self._outer)
        first[:, :hidden] /= self._scales[0]
        first[:, hidden:-1] /= self._scales[1]
        return Weights(
            first[:, :-1].contiguous(),
            first[:, -1].clone(),
            self._outer.detach(),
            self._kept,
            self._config.levels,
        )

    @torch.inference_mode()
    def judge(self) -> DraftHeadReport:
        """Return what the head predicts on the answers held back."""
        found, head = DraftHead(self._model, self.weights()), ends(self._model)[1]
        states, token_ids = self._held_out.states, self._held_out.token_ids
        first, among = [0] * AHEAD, [0] * AHEAD
        for places in torch.split(self._held_out.answers, _TOGETHER):
            guessed = states[places].to(self._device)
            for ahead in range(AHEAD):
                guessed = found.next_states(guessed, token_ids[places + ahead + 1].to(self._device))
                said = (
                    head(states[places + ahead + 1].to(self._device, head.weight.dtype))
                    .argmax(-1)
                    .cpu()
                )
                right = torch.from_numpy(found.guess(guessed, _AMONG)[0]) == said[:, None]
                first[ahead] += int(right[:, 0].sum())
                among[ahead] += int(right.any(-1).sum())
        count = len(self._held_out.answers)
        return DraftHeadReport(
            count, tuple(one / count for one in first), tuple(one / count for one in among)
        )

    def _batches(self) -> Iterator[Tensor]:
        places, size = self._learnt.places, self._config.batch
        order = places[torch.randperm(len(places), generator=self._random)]
        return iter(torch.split(order[: len(order) // size * size], size))

    def _loss(self, places: Tensor) -> Tensor:
        """Return the loss of guesses at places, one and two on."""
        guessed = self._following(self._states(places), places + 1)
        loss = self._cross_entropy(guessed, places + 1)
        return loss + _SECOND * self._cross_entropy(
            self._following(guessed, places + 2), places + 2
        )

    def _following(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Return what is made of states, float32 [n, hidden], and of the tokens at places behind
        them.
        """
        inputs = self._inputs(states, tokens).to(self._dtype)
        inside = functional.silu(functional.linear(inputs, self._inner.to(self._dtype)))
        beside = functional.linear(inside, self._outer.to(self._dtype)).float()
        return functional.linear(inputs, self._direct.to(self._dtype)).float() + beside

    def _inputs(self, states: Tensor, tokens: Tensor) -> Tensor:
        embedded = (
            self._embedding[self._learnt.token_ids[tokens].to(self._device)].float()
            / self._scales[1]
        )
        return torch.cat(
            (states / self._scales[0], embedded, torch.ones(len(states), 1, device=self._device)),
            dim=-1,
        )

    def _states(self, places: Tensor) -> Tensor:
        return self._learnt.states[places].to(self._device).float()

    def _cross_entropy(self, guessed: Tensor, places: Tensor) -> Tensor:
        """Return that of guessed states with what the target says at places, among the kept
        tokens.
        """
        with torch.no_grad():
            said = self._logits(self._states(places)).softmax(-1)
        return -(said * self._logits(guessed).log_softmax(-1)).sum(-1).mean()

    def _logits(self, states: Tensor) -> Tensor:
        logits = functional.linear(states.to(self._dtype), self._head).float()
        return logits if self._head_bias is None else logits + self._head_bias

    @torch.no_grad()
    def _least_squares(self, inputs: int, hidden: int) -> Tensor:
        """Return the linear map to begin with, [hidden, inputs and one]."""
        square, beside = torch.zeros(inputs, inputs), torch.zeros(inputs, hidden)
        for places in torch.split(self._learnt.places, _TOGETHER):
            rows = self._inputs(self._states(places), places + 1).cpu()
            square += rows.T @ rows
            beside += rows.T @ self._learnt.states[places + 1].float()
        square.diagonal().add_(_RIDGE)
        solution: Tensor = torch.linalg.solve(square, beside).T.contiguous().to(self._device)
        return solution


def commonest(learnt: States, count: int, vocab_size: int) -> Tensor:
    """Return the commonest tokens, ascending."""
    counts = torch.bincount(learnt.token_ids, minlength=vocab_size)
    return counts.argsort(descending=True, stable=True)[:count].sort().values


def _size(values: Tensor) -> float:
    return max(1e-6, float(values.float().square().mean().sqrt()))
