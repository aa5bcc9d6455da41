"""Fitting the calibration of `sssd` on recorded answers: what each offered token's evidence was, and whether it came true."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as ListLike
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import binary_cross_entropy_with_logits

from paceline.drafters.sssd.calibration import Calibration
from paceline.drafters.sssd.drafter import Sssd
from paceline.drafters.sssd.features import FEATURES, HIDDEN
from paceline.drafters.sssd.options import SssdOptions
from paceline.engine.sequence import SamplingParams, Sequence
from paceline.errors import ConfigError
from paceline.replay.run import Trace, said

Samples = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]  # inputs, labels, weights
_TURNS = 2
_NODES = 24  # of the trees whose offers are recorded
_SPAN = 64  # known tokens shown at each step
_KEPT = 24  # wrong offers of one step that are kept whole; of more, some are drawn and weighted
_RATE = 6e-3  # of Adam at first; it falls to zero along a cosine


@dataclass(frozen=True, slots=True)
class FitOptions:
    """Attributes:
    epochs: passes over the samples. batch: samples of one step. seed: of the order and the first weights.
    """

    epochs: int = 24
    batch: int = 2048
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1:
            raise ConfigError(f"fit: got epochs={self.epochs}, batch={self.batch}; expected at least 1 of each. Raise it.")


@dataclass(frozen=True, slots=True)
class Answers:
    """Recorded answers of one kind, which counts as much as any other.

    Attributes:
        traces: the answers. datastore: folder of the store that is searched for them; None = the request alone.
    """

    traces: ListLike[Trace]
    datastore: str | Path | None = None


def calibrate(
    kinds: Mapping[str, Answers], progress: Callable[[str], None] = lambda what: None, options: FitOptions | None = None
) -> Calibration:
    """Fit on recorded answers, twice: the second time on the trees that the first calibration draws.

    Args:
        kinds: answers by the name of their kind.
        progress: called with what is being done.
    Raises:
        ConfigError: no samples. DatastoreError: no store.
    """
    fitted: Calibration | None = None
    for turn in range(_TURNS):
        parts = []
        for name, answers in kinds.items():
            progress(f"turn {turn + 1}: {name}")
            store = None if answers.datastore is None else str(answers.datastore)
            inputs, labels, weights = record(Sssd(SssdOptions(store, nodes=_NODES), fitted), answers.traces)
            parts.append((inputs, labels, weights / weights.sum() * len(weights)))
        samples = tuple(np.concatenate(column) for column in zip(*parts, strict=True))
        progress(f"turn {turn + 1}: {len(samples[1]):,} samples")
        fitted = fit((samples[0], samples[1], samples[2]), options)
    assert fitted is not None
    fitted.about["traces"] = {name: len(answers.traces) for name, answers in kinds.items()}
    fitted.about["datastore"] = [name for name, answers in kinds.items() if answers.datastore is not None]
    return fitted


def record(drafter: Sssd, traces: Iterable[Trace], seed: int = 0) -> Samples:
    """Run answers through the drafter and keep what it offered behind paths that came true.

    Returns:
        inputs [samples, len(FEATURES)], labels [samples] (1 = came true), weights [samples].
    Raises:
        ConfigError: no samples.
    """
    rng = np.random.default_rng(seed)
    parts: list[Samples] = []
    for prompt, output in traces:
        if not len(output):
            continue
        seq = Sequence(list(prompt), SamplingParams(max_new_tokens=len(output), ignore_eos=True))
        drafter.start(seq)
        while seq.remaining:
            done = len(output) - seq.remaining
            tree, inputs, labels = drafter.record(seq, output[done : done + _SPAN], _NODES)
            parts.append(_thinned(inputs, labels, rng))
            seq.append(said(seq, tree, output).new_token_ids)
        drafter.stop(seq)
    if not sum(len(labels) for _, labels, _ in parts):
        raise ConfigError(
            "fit: got no samples from the traces, as nothing of them occurs twice; expected at least one. Use more or longer"
            " answers."
        )
    inputs, labels, weights = (np.concatenate(column) for column in zip(*parts, strict=True))
    return inputs, labels, weights


def fit(
    samples: Samples,
    options: FitOptions | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Calibration:
    """Return the network with the least weighted log loss, found by Adam.

    Args:
        samples: what `record` returned.
        progress: called after each epoch with its number and the loss.
    """
    options = options or FitOptions()
    centre, spread = samples[0].mean(axis=0), samples[0].std(axis=0) + 1e-3
    inputs, labels, weights = map(torch.from_numpy, ((samples[0] - centre) / spread, *samples[1:]))
    rng = np.random.default_rng(options.seed)
    first, bias, second, last = network = _first_network(rng, float(np.average(samples[1], weights=samples[2])))
    steps, loss = options.epochs * -(-len(labels) // options.batch), 0.0
    optimizer = torch.optim.Adam(network, lr=_RATE)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for epoch in range(options.epochs):
        losses = []
        for chosen in torch.split(torch.from_numpy(rng.permutation(len(labels))), options.batch):
            logits = torch.relu(inputs[chosen] @ first + bias) @ second + last
            share = weights[chosen] / weights[chosen].sum()
            step_loss = binary_cross_entropy_with_logits(logits, labels[chosen], share, reduction="sum")
            optimizer.zero_grad()
            step_loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            rate.step()
            losses.append(step_loss.item())
        loss = float(np.mean(losses))
        if progress is not None:
            progress(epoch + 1, loss)
    values = [part.detach().numpy() for part in network]
    told = samples[0].std(axis=0) > 0  # an input that never changed has taught nothing: it must not count when it does
    unscaled = values[0] / spread[:, None] * told[:, None]  # the drafter's inputs are not scaled: the weights are
    flat = np.concatenate([unscaled.ravel(), values[1] - centre @ unscaled, values[2], values[3]]).astype(np.float32)
    return Calibration(flat, {"samples": len(labels), "log_loss": round(loss, 5), "epochs": options.epochs, "seed": options.seed})


def _first_network(rng: np.random.Generator, share: float) -> list[torch.Tensor]:
    """Draw first weights [inputs, HIDDEN], [HIDDEN], [HIDDEN], [1]; the last one says what `share` of the samples came true."""
    inputs = len(FEATURES)
    parts = [
        rng.standard_normal((inputs, HIDDEN)) * np.sqrt(1 / inputs),
        np.zeros(HIDDEN),
        rng.standard_normal(HIDDEN) * np.sqrt(1 / HIDDEN),
        np.array([np.log(share / (1 - share))]),
    ]
    return [torch.tensor(part, dtype=torch.float32, requires_grad=True) for part in parts]


def _thinned(inputs: NDArray[np.float32], labels: NDArray[np.float32], rng: np.random.Generator) -> Samples:
    """Keep all that came true, and some of the rest, which weigh for those left out."""
    wrong = np.flatnonzero(labels == 0)
    right = np.flatnonzero(labels)
    kept = wrong if len(wrong) <= _KEPT else rng.choice(wrong, _KEPT, replace=False)
    weights = np.ones(len(right) + len(kept), dtype=np.float32)
    weights[len(right) :] = len(wrong) / max(1, len(kept))
    chosen = np.concatenate([right, kept])
    return inputs[chosen], labels[chosen], weights
