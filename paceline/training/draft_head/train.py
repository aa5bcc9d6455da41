"""Train a hidden-state draft head to predict the target's next two tokens.

The head predicts the target's next hidden state, as in EAGLE (Li et al. 2024), but without
attention. To predict the second token, the head reads its own prediction of the first state, as in
decoding. The loss is the cross-entropy against the target's distribution.

The initial head is a linear map, fitted by least squares. During training, inputs are scaled to
unit size; the returned weights expect unscaled inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.optim.lr_scheduler import OneCycleLR

from paceline.draft_head.guessing import DraftHead
from paceline.draft_head.trained import save
from paceline.draft_head.weights import Weights, embedding_and_head
from paceline.errors import ConfigError
from paceline.training.draft_head import settings
from paceline.training.draft_head.prepare import DraftHeadData, States
from paceline.training.draft_head.settings import DraftHeadTraining
from paceline.training.loop import Trainer, TrainingReport, shuffled_batches
from paceline.training.optimisers import product_dtype


@dataclass(frozen=True, slots=True)
class DraftHeadReport:
    """The accuracy of a draft head on held-out answers.

    Attributes:
        positions: Number of text positions after which the draft head made predictions.
        first: Fraction of positions at which the head's most likely token is the target's token,
            for predictions one and two tokens ahead.
        among: Fraction of positions at which the target's token is among the head's eight most
            likely tokens, for predictions one and two tokens ahead.
    """

    positions: int
    first: tuple[float, ...]
    among: tuple[float, ...]

    def __str__(self) -> str:
        """Return a short description of the accuracy for a progress line."""
        shares = [
            f"{first:.1%} / {among:.1%}"
            for first, among in zip(self.first, self.among, strict=True)
        ]
        return (
            f"{', '.join(shares)} of tokens guessed 1, 2 positions ahead (first guess / first"
            f" {settings.TOP_GUESSES})"
        )

    def as_dict(self, epoch: int) -> dict[str, Any]:
        """Return the accuracy as JSON values for the draft head's file.

        Args:
            epoch: Number of the epoch after which the accuracy was measured.
        """
        return {"epoch": epoch, "places": self.positions, "first": self.first, "among": self.among}


class DraftHeadTrainer(Trainer):
    """Trains a hidden-state draft head.

    Args:
        data: Target model, and hidden states for training and validation.
        config: Settings of the training.
        out: File that receives the weights of the best epoch. Default: the weights are not saved.
    Attributes:
        reports: Accuracy before the first epoch and after every epoch.
        best: Accuracy of the best epoch; None until the first epoch ends.
    Raises:
        ConfigError: There are too few positions to train on.
    """

    command = "draft-head train"

    def __init__(
        self, data: DraftHeadData, config: DraftHeadTraining, out: Path | None = None
    ) -> None:
        training, held_out = data.training, data.held_out
        if len(training.positions) < config.batch or not len(held_out.answers):
            raise ConfigError(
                f"draft-head train: got {len(training.positions)} positions to train on and"
                f" {len(held_out.answers)} held-out positions; expected at least {config.batch}"
                " (one batch) and 1. Record more answers."
            )
        self._epoch_steps = len(training.positions) // config.batch
        steps = config.epochs * self._epoch_steps
        super().__init__(config, steps, self._epoch_steps)
        self.reports: list[DraftHeadReport] = []
        self.best: DraftHeadReport | None = None
        self._model, self._config, self._card, self._out = data.model, config, data.card, out
        self._training, self._held_out = training, held_out
        self._random = torch.Generator().manual_seed(config.seed)
        self._set_target()
        self._set_weights()
        self.optimisers = [
            torch.optim.AdamW(self.parameters, lr=config.lr, weight_decay=settings.WEIGHT_DECAY)
        ]
        self.schedules = [
            OneCycleLR(
                self.optimisers[0],
                config.lr,
                total_steps=steps + 1,
                pct_start=settings.WARM_UP_SHARE,
            )
        ]
        self._batches = shuffled_batches(training.positions, config.batch, self._random, True)

    def run(self, report: TrainingReport | None = None) -> None:
        """Validate the initial linear map, then train for all epochs.

        Args:
            report: Progress report. Default: no output.
        Raises:
            ConfigError: A loss is not finite.
        """
        report = report or TrainingReport()
        self.report_validation(report)
        super().run(report)

    def next_loss(self) -> tuple[str, Tensor]:
        """Return the name "training" and the loss on the next batch.

        The loss is a weighted sum of the losses for predictions one and two tokens ahead.
        """
        positions = next(self._batches)
        predicted = self._next_states(self._states(positions), positions + 1)
        loss = self._cross_entropy(predicted, positions + 1)
        predicted = self._next_states(predicted, positions + 2)
        return "training", loss + settings.SECOND_WEIGHT * self._cross_entropy(
            predicted, positions + 2
        )

    def validate(self, losses: dict[str, float]) -> str:
        """Measure accuracy on held-out answers; save the head if it is the best so far."""
        epoch, report = self.progress.steps // self._epoch_steps, self.evaluate()
        self.reports.append(report)
        if epoch and (self.best is None or report.first[0] > self.best.first[0]):
            self.best = report
            if self._out is not None:
                card = replace(self._card, judged=report.as_dict(epoch))
                save(self._out, self.weights(), card)
        return str(report)

    def weights(self) -> Weights:
        """Return the current weights, converted for unscaled inputs."""
        first = torch.cat((self._direct, self._inner)).detach().clone()
        hidden = len(self._outer)
        first[:, :hidden] /= self._state_scale
        first[:, hidden:-1] /= self._token_scale
        return Weights(
            first[:, :-1].contiguous(),
            first[:, -1].clone(),
            self._outer.detach(),
            self._token_ids,
            self._config.levels,
        )

    @torch.inference_mode()
    def evaluate(self) -> DraftHeadReport:
        """Measure the accuracy of the current weights on held-out answers."""
        draft_head = DraftHead(self._model, self.weights())
        lm_head = embedding_and_head(self._model)[1]
        states, token_ids = self._held_out.states, self._held_out.token_ids
        first, among = [0] * settings.TRAINED_LEVELS, [0] * settings.TRAINED_LEVELS
        for positions in torch.split(self._held_out.answers, settings.EVALUATION_ROWS):
            predicted = states[positions].to(self._device)
            for level in range(settings.TRAINED_LEVELS):
                next_positions = positions + level + 1
                predicted = draft_head.next_states(
                    predicted, token_ids[next_positions].to(self._device)
                )
                target_states = states[next_positions].to(self._device, lm_head.weight.dtype)
                chosen = lm_head(target_states).argmax(-1)
                guesses, _ = draft_head.guess(predicted, settings.TOP_GUESSES)
                right = guesses == chosen[:, None]
                first[level] += int(right[:, 0].sum())
                among[level] += int(right.any(-1).sum())
        count = len(self._held_out.answers)
        return DraftHeadReport(
            count, tuple(hits / count for hits in first), tuple(hits / count for hits in among)
        )

    def _set_target(self) -> None:
        """Read the target's embedding, and the LM head's rows for the reduced vocabulary."""
        embedding, head = embedding_and_head(self._model)
        self._device, self._embedding = self._model.device, embedding.weight.detach()
        self._token_ids = most_frequent(self._training, self._config.kept, len(head.weight))
        self._dtype = product_dtype(self._device)
        rows = self._token_ids.to(self._device)
        self._head = head.weight.detach()[rows].to(self._dtype)
        self._head_bias = None if head.bias is None else head.bias.detach()[rows].float()
        self._state_scale = _root_mean_square(self._training.states)
        self._token_scale = _root_mean_square(self._embedding)

    def _set_weights(self) -> None:
        """Initialise the weights, so that the head starts as a fitted linear map.

        The linear map `direct` is fitted by least squares. The hidden layer starts with random
        input weights (`inner`) and zero output weights (`outer`).
        """
        neurons, (embedding, head) = self._config.neurons, embedding_and_head(self._model)
        hidden, inputs = head.in_features, head.in_features + embedding.embedding_dim
        inner = torch.randn(neurons, inputs + 1, generator=self._random) / (inputs + 1) ** 0.5
        self._direct = self._least_squares(inputs + 1, hidden).requires_grad_()
        self._inner = inner.to(self._device).requires_grad_()
        self._outer = torch.zeros(hidden, neurons, device=self._device, requires_grad=True)
        self.parameters = [self._direct, self._inner, self._outer]

    def _next_states(self, states: Tensor, following: Tensor) -> Tensor:
        """Predict the target's hidden states after the next tokens, float32 [n, hidden].

        Args:
            states: Hidden states from which the next tokens were chosen, float32 [n, hidden].
            following: Indices of the next tokens in the training data, [n].
        """
        inputs = self._inputs(states, following).to(self._dtype)
        inside = functional.silu(functional.linear(inputs, self._inner.to(self._dtype)))
        correction = functional.linear(inside, self._outer.to(self._dtype)).float()
        return functional.linear(inputs, self._direct.to(self._dtype)).float() + correction

    def _inputs(self, states: Tensor, following: Tensor) -> Tensor:
        token_ids = self._training.token_ids[following].to(self._device)
        embedded = self._embedding[token_ids].float() / self._token_scale
        ones = torch.ones(len(states), 1, device=self._device)
        return torch.cat((states / self._state_scale, embedded, ones), dim=-1)

    def _states(self, positions: Tensor) -> Tensor:
        return self._training.states[positions].to(self._device).float()

    def _cross_entropy(self, predicted: Tensor, positions: Tensor) -> Tensor:
        """Return the mean cross-entropy of predicted states against the target, in nats.

        The LM head computes both distributions from hidden states.

        Args:
            predicted: Predicted hidden states, [n, hidden].
            positions: Indices of the target's hidden states in the training data, [n].
        """
        with torch.no_grad():
            probs = self._logits(self._states(positions)).softmax(-1)
        return -(probs * self._logits(predicted).log_softmax(-1)).sum(-1).mean()

    def _logits(self, states: Tensor) -> Tensor:
        logits = functional.linear(states.to(self._dtype), self._head).float()
        return logits if self._head_bias is None else logits + self._head_bias

    @torch.no_grad()
    def _least_squares(self, inputs: int, hidden: int) -> Tensor:
        """Fit a linear map [hidden, inputs] from the head's inputs to the next states."""
        gram, moments = torch.zeros(inputs, inputs), torch.zeros(inputs, hidden)
        for positions in torch.split(self._training.positions, settings.EVALUATION_ROWS):
            rows = self._inputs(self._states(positions), positions + 1).cpu()
            gram += rows.T @ rows
            moments += rows.T @ self._training.states[positions + 1].float()
        gram.diagonal().add_(settings.RIDGE)
        solution: Tensor = torch.linalg.solve(gram, moments).T.contiguous().to(self._device)
        return solution


def most_frequent(states: States, count: int, vocab_size: int) -> Tensor:
    """Return the ids of the most frequent tokens in the training text, ascending.

    Args:
        states: Token ids and hidden states of the training text.
        count: Number of tokens to return.
        vocab_size: Vocabulary size of the target.
    """
    counts = torch.bincount(states.token_ids, minlength=vocab_size)
    return counts.argsort(descending=True, stable=True)[:count].sort().values


def _root_mean_square(values: Tensor) -> float:
    return max(1e-6, float(values.float().square().mean().sqrt()))
