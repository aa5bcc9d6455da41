"""Fitting the calibration of `sssd` on recorded answers: what each offered token's evidence was, and whether it came true."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from paceline.drafters.sssd import Sssd, SssdOptions
from paceline.drafters.sssd_calibration import Calibration
from paceline.drafters.sssd_features import FEATURES, HIDDEN
from paceline.errors import ConfigError
from paceline.replay import Trace, said
from paceline.sequence import SamplingParams, Sequence

Samples = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]  # inputs, labels, weights
_TURNS = 2
_NODES = 24  # of the trees whose offers are recorded
_SPAN = 64  # known tokens shown at each step
_KEPT = 24  # wrong offers of one step that are kept whole; of more, some are drawn and weighted
_FIRST, _SECOND, _FLOOR = 0.9, 0.999, 1e-8  # of Adam, Kingma and Ba 2015
_RATE, _DECAY = 6e-3, 0.0


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
            raise ConfigError(f"fit: epochs={self.epochs}, batch={self.batch} came; at least 1 of each is allowed.")


def calibrate(
    traces: Mapping[str, Seq[Trace]],
    datastore: str | Path | None,
    progress: Callable[[str], None] = lambda what: None,
    options: FitOptions | None = None,
) -> Calibration:
    """Fit on recorded answers, twice: the second time on the trees that the first calibration draws.

    Args:
        traces: answers by the name of their kind; each kind counts alike.
        datastore: folder of the store that will be searched; None = the request alone.
        progress: told what is being done.
    Raises:
        ConfigError: no samples. DatastoreError: no store.
    """
    store = None if datastore is None else str(datastore)
    with TemporaryDirectory() as folder:
        file = None
        for turn in range(_TURNS):
            drafter = Sssd(SssdOptions(store, calibration=file, nodes=_NODES))
            parts = []
            for name, some in traces.items():
                progress(f"turn {turn + 1}: {name}")
                inputs, labels, weights = record(drafter, some)
                parts.append((inputs, labels, weights / weights.sum() * len(weights)))
            samples = tuple(np.concatenate(column) for column in zip(*parts, strict=True))
            progress(f"turn {turn + 1}: {len(samples[1]):,} samples")
            fitted = fit((samples[0], samples[1], samples[2]), options)
            file = str(Path(folder) / f"{turn}.json")
            fitted.save(file)
    fitted.about["traces"] = {name: len(some) for name, some in traces.items()}
    return fitted


def record(drafter: Sssd, traces: Iterable[Trace], seed: int = 0) -> Samples:
    """Run answers through the drafter and keep what it offered behind true paths.

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
        raise ConfigError("fit: the traces gave no samples: nothing of them occurs twice. Use more or longer answers.")
    inputs, labels, weights = (np.concatenate(column) for column in zip(*parts, strict=True))
    return inputs, labels, weights


def fit(
    samples: Samples,
    options: FitOptions | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Calibration:
    """The network with the least weighted log loss.

    Args:
        samples: as `record` gives them.
        progress: called after each epoch with its number and the loss.
    """
    options = options or FitOptions()
    inputs, labels, weights = samples
    centre, spread = inputs.mean(axis=0), inputs.std(axis=0) + 1e-3
    scaled = (inputs - centre) / spread
    rng = np.random.default_rng(options.seed)
    network = _Network(len(FEATURES), rng, float(np.average(labels, weights=weights)))
    steps, loss = options.epochs * -(-len(labels) // options.batch), 0.0
    for epoch in range(options.epochs):
        order, losses = rng.permutation(len(labels)), []
        for begin in range(0, len(order), options.batch):
            chosen = order[begin : begin + options.batch]
            losses.append(network.learn(scaled[chosen], labels[chosen], weights[chosen], steps))
        loss = float(np.mean(losses))
        if progress is not None:
            progress(epoch + 1, loss)
    first = network.first / spread[:, None]
    bias = network.bias - centre @ first
    flat = np.concatenate([first.ravel(), bias, network.second, network.last]).astype(np.float32)
    return Calibration(flat, {"samples": len(labels), "log_loss": round(loss, 5), "epochs": options.epochs, "seed": options.seed})


class _Network:
    """One layer of rectified units and a logistic one, with Adam; the rate falls to zero along a cosine."""

    def __init__(self, inputs: int, rng: np.random.Generator, share: float) -> None:
        self.first = (rng.standard_normal((inputs, HIDDEN)) * np.sqrt(1 / inputs)).astype(np.float32)
        self.bias = np.zeros(HIDDEN, dtype=np.float32)
        self.second = (rng.standard_normal(HIDDEN) * np.sqrt(1 / HIDDEN)).astype(np.float32)
        self.last = np.array([np.log(share / (1 - share))], dtype=np.float32)
        self._all = (self.first, self.bias, self.second, self.last)
        self._moments = [(np.zeros_like(one), np.zeros_like(one)) for one in self._all]
        self._step = 0

    def learn(self, inputs: NDArray[np.float32], labels: NDArray[np.float32], weights: NDArray[np.float32], steps: int) -> float:
        """One step on one batch, of `steps` in all; its loss before."""
        hidden = np.maximum(inputs @ self.first + self.bias, 0)
        chances = 1 / (1 + np.exp(-np.clip(hidden @ self.second + self.last, -30, 30)))
        share = weights / weights.sum()
        error = share * (chances - labels)
        back = np.outer(error, self.second) * (hidden > 0)
        slopes = (inputs.T @ back + _DECAY * self.first, back.sum(0), hidden.T @ error + _DECAY * self.second, error.sum()[None])
        self._step += 1
        rate = _RATE * 0.5 * (1 + np.cos(np.pi * self._step / steps))
        for value, slope, (mean, square) in zip(self._all, slopes, self._moments, strict=True):
            mean += (1 - _FIRST) * (slope - mean)
            square += (1 - _SECOND) * (slope * slope - square)
            known = np.sqrt(square / (1 - _SECOND**self._step)) + _FLOOR
            value -= (rate / (1 - _FIRST**self._step) * mean / known).astype(np.float32)
        right = np.where(labels > 0.5, chances, 1 - chances)
        return float(-(share * np.log(np.maximum(right, 1e-12))).sum())


def _thinned(inputs: NDArray[np.float32], labels: NDArray[np.float32], rng: np.random.Generator) -> Samples:
    """All that came true, and some of the rest, which weigh for those left out."""
    wrong = np.flatnonzero(labels == 0)
    right = np.flatnonzero(labels)
    kept = wrong if len(wrong) <= _KEPT else rng.choice(wrong, _KEPT, replace=False)
    weights = np.ones(len(right) + len(kept), dtype=np.float32)
    weights[len(right) :] = len(wrong) / max(1, len(kept))
    chosen = np.concatenate([right, kept])
    return inputs[chosen], labels[chosen], weights
