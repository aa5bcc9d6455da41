"""Fit the calibration of `sssd` on recorded answers.

The samples are the tokens that the drafter offered: their match statistics, and whether the
recorded answer contains them at that position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import binary_cross_entropy_with_logits

from paceline.core.request import Request, SamplingParams
from paceline.drafters.sssd.calibration import Calibration
from paceline.drafters.sssd.drafter import Sssd
from paceline.drafters.sssd.features import FEATURES, HIDDEN
from paceline.drafters.sssd.options import SssdOptions
from paceline.errors import ConfigError
from paceline.replay.fit_settings import (
    ADAM_LEARNING_RATE,
    FIT_ROUNDS,
    KNOWN_TOKENS,
    MAX_WRONG_CANDIDATES,
    TREE_NODES,
    FitOptions,
)
from paceline.replay.run import Trace, said

# inputs, labels, weights
Samples = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class AnswerKind:
    """Recorded answers of one kind. Every kind has the same weight in the fit.

    Attributes:
        traces: The answers as (prompt ids, output ids).
        datastore: Folder of the datastore that is searched for them; None searches the request
            alone.
    """

    traces: Sequence[Trace]
    datastore: str | Path | None = None


def calibrate(
    kinds: Mapping[str, AnswerKind],
    progress: Callable[[str], None] = lambda what: None,
    options: FitOptions | None = None,
) -> Calibration:
    """Fit the calibration on recorded answers in two rounds.

    The second round records the trees that the first calibration selects.

    Args:
        kinds: Answers by the name of their kind.
        progress: Called with a description of each stage.
    Raises:
        ConfigError: The answers give no samples.
        DatastoreError: A datastore does not exist or is damaged.
    """
    fitted: Calibration | None = None
    for turn in range(FIT_ROUNDS):
        parts = []
        for name, answers in kinds.items():
            progress(f"turn {turn + 1}: {name}")
            store = None if answers.datastore is None else str(answers.datastore)
            drafter = Sssd(SssdOptions(store, max_nodes=TREE_NODES), fitted)
            inputs, labels, weights = record(drafter, answers.traces)
            parts.append((inputs, labels, weights / weights.sum() * len(weights)))
        samples = tuple(np.concatenate(column) for column in zip(*parts, strict=True))
        progress(f"turn {turn + 1}: {len(samples[1]):,} samples")
        fitted = fit((samples[0], samples[1], samples[2]), options)
    assert fitted is not None
    fitted.about["traces"] = {name: len(answers.traces) for name, answers in kinds.items()}
    fitted.about["datastore"] = [
        name for name, answers in kinds.items() if answers.datastore is not None
    ]
    return fitted


def record(drafter: Sssd, traces: Iterable[Trace], seed: int = 0) -> Samples:
    """Run answers through the drafter and record the candidates of accepted paths.

    Returns:
        Inputs [samples, len(FEATURES)], labels [samples] (1 = the answer has that token), and
        weights [samples].
    Raises:
        ConfigError: The answers give no samples.
    """
    rng = np.random.default_rng(seed)
    parts: list[Samples] = []
    for prompt, output in traces:
        if not len(output):
            continue
        request = Request(list(prompt), SamplingParams(max_new_tokens=len(output), ignore_eos=True))
        drafter.start(request)
        while request.remaining:
            done = len(output) - request.remaining
            known = output[done : done + KNOWN_TOKENS]
            tree, inputs, labels = drafter.record(request, known, TREE_NODES)
            parts.append(_subsample(inputs, labels, rng))
            request.append(said(request, tree, output).new_token_ids)
        drafter.stop(request)
    if not sum(len(labels) for _, labels, _ in parts):
        raise ConfigError(
            "fit: no token of the traces occurs twice, so they give no samples. Use more or longer"
            " answers."
        )
    inputs, labels, weights = (np.concatenate(column) for column in zip(*parts, strict=True))
    return inputs, labels, weights


def fit(
    samples: Samples,
    options: FitOptions | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Calibration:
    """Fit the network to the samples: minimise the weighted log loss with Adam.

    Args:
        samples: The result of `record`.
        progress: Called after each epoch with its number and the loss.
    """
    options = options or FitOptions()
    centre, spread = samples[0].mean(axis=0), samples[0].std(axis=0) + 1e-3
    inputs, labels, weights = map(torch.from_numpy, ((samples[0] - centre) / spread, *samples[1:]))
    rng = np.random.default_rng(options.seed)
    first, bias, second, last = network = _first_network(
        rng, float(np.average(samples[1], weights=samples[2]))
    )
    steps, loss = options.epochs * -(-len(labels) // options.batch), 0.0
    optimizer = torch.optim.Adam(network, lr=ADAM_LEARNING_RATE)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for epoch in range(options.epochs):
        losses = []
        for chosen in torch.split(torch.from_numpy(rng.permutation(len(labels))), options.batch):
            logits = torch.relu(inputs[chosen] @ first + bias) @ second + last
            share = weights[chosen] / weights[chosen].sum()
            step_loss = binary_cross_entropy_with_logits(
                logits, labels[chosen], share, reduction="sum"
            )
            optimizer.zero_grad()
            step_loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            rate.step()
            losses.append(step_loss.item())
        loss = float(np.mean(losses))
        if progress is not None:
            progress(epoch + 1, loss)
    values = [part.detach().numpy() for part in network]
    # The weights of a constant input were never trained, so they are zero.
    varies = samples[0].std(axis=0) > 0
    # The drafter passes unscaled inputs, so the weights absorb the scaling.
    unscaled = values[0] / spread[:, None] * varies[:, None]
    flat = np.concatenate(
        [unscaled.ravel(), values[1] - centre @ unscaled, values[2], values[3]]
    ).astype(np.float32)
    about = {
        "samples": len(labels),
        "log_loss": round(loss, 5),
        "epochs": options.epochs,
        "seed": options.seed,
    }
    return Calibration(flat, about)


def _first_network(rng: np.random.Generator, share: float) -> list[torch.Tensor]:
    """Draw initial weights; the output bias is the logit of `share`.

    Returns:
        Tensors [inputs, HIDDEN], [HIDDEN], [HIDDEN] and [1].
    """
    inputs = len(FEATURES)
    parts = [
        rng.standard_normal((inputs, HIDDEN)) * np.sqrt(1 / inputs),
        np.zeros(HIDDEN),
        rng.standard_normal(HIDDEN) * np.sqrt(1 / HIDDEN),
        np.array([np.log(share / (1 - share))]),
    ]
    return [torch.tensor(part, dtype=torch.float32, requires_grad=True) for part in parts]


def _subsample(
    inputs: NDArray[np.float32], labels: NDArray[np.float32], rng: np.random.Generator
) -> Samples:
    """Keep all right candidates, and sample the wrong ones with weights."""
    wrong = np.flatnonzero(labels == 0)
    right = np.flatnonzero(labels)
    sampled = wrong
    if len(wrong) > MAX_WRONG_CANDIDATES:
        sampled = rng.choice(wrong, MAX_WRONG_CANDIDATES, replace=False)
    weights = np.ones(len(right) + len(sampled), dtype=np.float32)
    weights[len(right) :] = len(wrong) / max(1, len(sampled))
    chosen = np.concatenate([right, sampled])
    return inputs[chosen], labels[chosen], weights
