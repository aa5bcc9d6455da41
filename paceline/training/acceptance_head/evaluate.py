"""Judge a head on prompts it has not seen, beside the draft's own probabilities as predictors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from paceline.drafters.specdec_pp.head import AcceptanceHead
from paceline.errors import ConfigError
from paceline.report.documents import DocumentKind, write_document
from paceline.report.drawing import COLOURS, INK, MARKERS, label, page, save
from paceline.report.tables import Column, Table
from paceline.training.acceptance_head.metrics import (
    Bin,
    calibration_error,
    log_loss,
    reliability_bins,
    roc_area,
)
from paceline.training.acceptance_head.recording import Recording

HEAD, FIRST = "acceptance head", "before the hidden state is known"
_PREDICTORS: dict[str, Callable[[Recording], Tensor]] = {
    "draft's probability of the token": lambda recording: recording.log_probs.exp(),
    "draft's top-1 probability": lambda recording: recording.top_probs,
}


@dataclass(frozen=True, slots=True)
class Quality:
    """How good one predictor is.

    Attributes:
        calibration_error: expected calibration error over 15 bins.
        roc_area: area under the ROC curve.
        log_loss: in nats.
        bins: predictions beside what was observed.
    """

    calibration_error: float
    roc_area: float
    log_loss: float
    bins: tuple[Bin, ...]


@dataclass(frozen=True, slots=True)
class AcceptanceReport:
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
            name: {
                "calibration_error": one.calibration_error,
                "roc_area": one.roc_area,
                "log_loss": one.log_loss,
            }
            for name, one in self.qualities.items()
        }
        return {
            "prompts": self.prompts,
            "positions": self.positions,
            "accepted": self.accepted,
            **rows,
        }


_KIND = DocumentKind("head judgement", 1, AcceptanceReport)


def evaluate(head: AcceptanceHead, recordings: Sequence[Recording]) -> AcceptanceReport:
    """Judge `head` on those prompts of the recordings that it was neither trained nor calibrated
    on.

    Raises:
        ConfigError: a recording of another draft, or without such prompts.
    """
    for recording in recordings:
        if recording.settings["draft_fingerprint"] != head.card.draft_fingerprint:
            raise ConfigError(
                "head evaluate: got a recording of draft"
                f" {recording.settings['draft_fingerprint'][:12]}; expected the head's draft,"
                f" {head.card.draft_fingerprint[:12]}. Record that one."
            )
    unseen = [
        recording.of_prompts(set(recording.names) - head.card.seen_prompts)
        for recording in recordings
    ]
    if not any(map(len, unseen)):
        raise ConfigError(
            "head evaluate: got a head that was trained on every prompt of the recording; expected"
            " other prompts. Record some."
        )
    return judge(head, unseen)


def judge(head: AcceptanceHead, recordings: Sequence[Recording]) -> AcceptanceReport:
    """Judge `head` on all positions of the recordings."""
    recordings = [
        one for one in recordings if len(one)
    ] or recordings  # of several, some may have no such prompts
    labels = torch.cat([recording.labels for recording in recordings])
    features = [(one.hidden, one.log_probs, one.entropies) for one in recordings]
    predictions = {
        HEAD: torch.cat([head.confidences(*one) for one in features]).clone(),
        FIRST: torch.cat([head.early_confidences(*one[1:]) for one in features]).clone(),
    }
    for name, predict in _PREDICTORS.items():
        predictions[name] = torch.cat([predict(recording) for recording in recordings])
    prompts = {
        recording.names[place]
        for recording in recordings
        for place in set(recording.prompts.tolist())
    }
    qualities = {
        name: Quality(
            calibration_error(predicted, labels),
            roc_area(predicted, labels),
            log_loss(predicted, labels),
            tuple(reliability_bins(predicted, labels)),
        )
        for name, predicted in predictions.items()
    }
    return AcceptanceReport(len(prompts), len(labels), float(labels.mean()), qualities)


def print_judgement(judgement: AcceptanceReport, console: Console | None = None) -> None:
    """Print the predictors and how good they are."""
    title = (
        f"{judgement.positions} drafted tokens of {judgement.prompts} prompts not trained on,"
        f" {judgement.accepted:.1%} accepted"
    )
    columns = [Column("predictor of acceptance"), "calibration error", "ROC area", "log loss"]
    rows = [
        (name, one.calibration_error, one.roc_area, one.log_loss)
        for name, one in judgement.qualities.items()
    ]
    Table.of(title, columns, rows, form=".4f").show(console or Console())


def write_judgement(judgement: AcceptanceReport, path: str | Path) -> None:
    """Write the judgement as JSON, with the bins."""
    write_document(path, _KIND, judgement)


def draw_judgement(judgement: AcceptanceReport, path: str | Path) -> None:
    """Draw the reliability plot: predicted against observed acceptance, per predictor, into a PNG
    file.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    figure = page(6.0, 5.4)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="#B0B0B0", linewidth=1)
    largest = max(one.count for quality in judgement.qualities.values() for one in quality.bins)
    for place, (name, quality) in enumerate(judgement.qualities.items()):
        xs, ys = [one.predicted for one in quality.bins], [one.observed for one in quality.bins]
        sizes = [12 + 120 * one.count / largest for one in quality.bins]
        text = f"{name} (error {quality.calibration_error:.3f}, ROC {quality.roc_area:.3f})"
        axes.plot(xs, ys, color=COLOURS[place], linewidth=1)
        axes.scatter(
            xs,
            ys,
            s=sizes,
            color=COLOURS[place],
            marker=MARKERS[place],
            label=text,
            edgecolors="none",
            alpha=0.8,
        )
    label(
        axes,
        "Reliability; larger marks hold more tokens",
        "predicted acceptance",
        "observed acceptance",
        "both",
    )
    axes.legend(fontsize=8, frameon=False, labelcolor=INK)
    save(
        figure,
        path,
        [f"{judgement.positions} tokens", f"{judgement.prompts} prompts not trained on"],
        80,
        10,
    )
