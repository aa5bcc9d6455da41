"""Judge a head on prompts it has not seen, beside the draft's own probabilities as predictors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from paceline.acceptance import AcceptanceHead
from paceline.bench.document import write_document
from paceline.errors import ConfigError
from paceline.head.metrics import Bin, calibration_error, log_loss, reliability, roc_area
from paceline.head.recording import Recording

HEAD, FIRST = "acceptance head", "before the hidden state is known"
_PREDICTORS: dict[str, Callable[[Recording], Tensor]] = {
    "draft's probability of the token": lambda recording: recording.log_probs.exp(),
    "draft's top-1 probability": lambda recording: recording.top_probs,
}


@dataclass(frozen=True, slots=True)
class Quality:
    """Of one predictor: expected calibration error over 15 bins, ROC area, log loss in nats, and the bins."""

    calibration_error: float
    roc_area: float
    log_loss: float
    bins: tuple[Bin, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """How well acceptance was predicted at `positions` drafted tokens of `prompts` prompts.

    Attributes:
        accepted: mean label. qualities: by predictor, the head first.
    """

    prompts: int
    positions: int
    accepted: float
    qualities: dict[str, Quality]

    def as_dict(self) -> dict[str, Any]:
        """For JSON, without the bins."""
        rows = {
            name: {"calibration_error": one.calibration_error, "roc_area": one.roc_area, "log_loss": one.log_loss}
            for name, one in self.qualities.items()
        }
        return {"prompts": self.prompts, "positions": self.positions, "accepted": self.accepted, **rows}


def evaluate(head: AcceptanceHead, recordings: Seq[Recording]) -> Judgement:
    """Judge `head` on those prompts of the recordings that it was neither trained nor calibrated on.

    Raises:
        ConfigError: a recording of another draft, or without such prompts.
    """
    for recording in recordings:
        if recording.settings["draft_fingerprint"] != head.card.draft_fingerprint:
            raise ConfigError(
                f"head evaluate: the recording is of draft {recording.settings['draft_fingerprint'][:12]}, and the head of draft"
                f" {head.card.draft_fingerprint[:12]}. Record the head's own draft model."
            )
    unseen = [recording.of(set(recording.names) - head.card.seen_prompts) for recording in recordings]
    if not any(map(len, unseen)):
        raise ConfigError("head evaluate: the head was trained on every prompt of the recording; record others, or train anew.")
    return judge(head, unseen)


def judge(head: AcceptanceHead, recordings: Seq[Recording]) -> Judgement:
    """Judge `head` on all positions of the recordings."""
    labels = torch.cat([recording.labels for recording in recordings])
    features = [(one.hidden, one.log_probs, one.entropies) for one in recordings]
    predictions = {
        HEAD: torch.cat([head.chances(*one) for one in features]).clone(),
        FIRST: torch.cat([head.first_chances(*one[1:]) for one in features]).clone(),
    }
    for name, predict in _PREDICTORS.items():
        predictions[name] = torch.cat([predict(recording) for recording in recordings])
    prompts = {recording.names[place] for recording in recordings for place in set(recording.prompts.tolist())}
    qualities = {
        name: Quality(
            calibration_error(predicted, labels), roc_area(predicted, labels), log_loss(predicted, labels),
            tuple(reliability(predicted, labels)),
        )
        for name, predicted in predictions.items()
    }  # fmt: skip
    return Judgement(len(prompts), len(labels), float(labels.mean()), qualities)


def print_judgement(judgement: Judgement, console: Console | None = None) -> None:
    """The table: predictors and how good they are."""
    counts = f"{judgement.positions} drafted tokens of {judgement.prompts} prompts not trained on"
    table = Table(box=None, pad_edge=False, title_justify="left", title=f"{counts}, {judgement.accepted:.1%} accepted")
    table.add_column("predictor of acceptance")
    for heading in ("calibration error", "ROC area", "log loss"):
        table.add_column(heading, justify="right")
    for name, one in judgement.qualities.items():
        table.add_row(name, f"{one.calibration_error:.4f}", f"{one.roc_area:.4f}", f"{one.log_loss:.4f}")
    (console or Console()).print(table)


def write_judgement(judgement: Judgement, path: str | Path) -> None:
    """As JSON, with the bins."""
    write_document(path, "head judgement", 1, dataclasses.asdict(judgement))


def draw_judgement(judgement: Judgement, path: str | Path) -> None:
    """The reliability plot: predicted against observed acceptance, per predictor, into a PNG file.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    from paceline.bench.drawing import COLOURS, INK, MARKERS, headline, label, page, save

    figure = page(6.0, 5.4)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="#B0B0B0", linewidth=1)
    largest = max(one.count for quality in judgement.qualities.values() for one in quality.bins)
    for place, (name, quality) in enumerate(judgement.qualities.items()):
        xs, ys = [one.predicted for one in quality.bins], [one.observed for one in quality.bins]
        sizes = [12 + 120 * one.count / largest for one in quality.bins]
        text = f"{name} (error {quality.calibration_error:.3f}, ROC {quality.roc_area:.3f})"
        axes.plot(xs, ys, color=COLOURS[place], linewidth=1)
        axes.scatter(xs, ys, s=sizes, color=COLOURS[place], marker=MARKERS[place], label=text, edgecolors="none", alpha=0.8)
    label(axes, "Reliability; larger marks hold more tokens", "predicted acceptance", "observed acceptance", "both")
    axes.legend(fontsize=8, frameon=False, labelcolor=INK)
    headline(figure, [f"{judgement.positions} tokens", f"{judgement.prompts} prompts not trained on"], 80, 10)
    save(figure, path)
