"""Evaluate an acceptance head and simpler predictors on unseen prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
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
    """The quality of one predictor of acceptance probabilities.

    Attributes:
        calibration_error: Expected calibration error over 15 bins.
        roc_area: Area under the ROC curve.
        log_loss: Mean binary cross-entropy, in nats.
        bins: Predicted and observed acceptance rate in each bin of predictions.
    """

    calibration_error: float
    roc_area: float
    log_loss: float
    bins: tuple[Bin, ...]


@dataclass(frozen=True, slots=True)
class AcceptanceReport:
    """The quality of acceptance predictors on unseen prompts.

    Attributes:
        prompts: Number of prompts.
        positions: Number of draft tokens whose acceptance was predicted.
        accepted: Mean acceptance probability of the draft tokens.
        qualities: Quality of each predictor, by name; the acceptance head comes first.
    """

    prompts: int
    positions: int
    accepted: float
    qualities: dict[str, Quality]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values, without the bins."""
        values: dict[str, Any] = asdict(self)
        qualities = values.pop("qualities")
        for quality in qualities.values():
            del quality["bins"]
        values.update(qualities)
        return values


_KIND = DocumentKind("head judgement", 1, AcceptanceReport)


def evaluate(head: AcceptanceHead, recordings: Sequence[Recording]) -> AcceptanceReport:
    """Evaluate a head on prompts that were used for neither training nor calibration.

    Raises:
        ConfigError: A recording was made with a different draft model, or the recordings contain no
            unseen prompts.
    """
    for recording in recordings:
        if recording.settings["draft_fingerprint"] != head.card.draft_fingerprint:
            raise ConfigError(
                "head evaluate: got a recording of draft"
                f" {recording.settings['draft_fingerprint'][:12]}; expected the head's draft,"
                f" {head.card.draft_fingerprint[:12]}. Make a recording with that draft."
            )
    unseen = [
        recording.of_prompts(set(recording.names) - head.card.seen_prompts)
        for recording in recordings
    ]
    if not any(map(len, unseen)):
        raise ConfigError(
            "head evaluate: got a head that was trained on every prompt of the recording; expected"
            " unseen prompts. Record answers to other prompts."
        )
    return judge(head, unseen)


def judge(head: AcceptanceHead, recordings: Sequence[Recording]) -> AcceptanceReport:
    """Evaluate a head and simpler predictors on all draft tokens in the recordings."""
    # A recording may contain none of the selected prompts if there are several recordings.
    recordings = [recording for recording in recordings if len(recording)] or recordings
    labels = torch.cat([recording.labels for recording in recordings])
    predictors = {
        HEAD: lambda recording: head.confidences(
            recording.hidden, recording.log_probs, recording.entropies
        ),
        FIRST: lambda recording: head.early_confidences(recording.log_probs, recording.entropies),
        **_PREDICTORS,
    }
    qualities = {}
    for name, predict in predictors.items():
        predicted = torch.cat([predict(recording).clone() for recording in recordings])
        qualities[name] = Quality(
            calibration_error(predicted, labels),
            roc_area(predicted, labels),
            log_loss(predicted, labels),
            tuple(reliability_bins(predicted, labels)),
        )
    prompts = {
        recording.names[prompt]
        for recording in recordings
        for prompt in set(recording.prompts.tolist())
    }
    return AcceptanceReport(len(prompts), len(labels), float(labels.mean()), qualities)


def print_judgement(judgement: AcceptanceReport, console: Console | None = None) -> None:
    """Print a table with the quality of each predictor."""
    title = (
        f"{judgement.positions} draft tokens of {judgement.prompts} prompts not trained on,"
        f" {judgement.accepted:.1%} accepted"
    )
    columns = [Column("predictor of acceptance"), "calibration error", "AUC", "log loss"]
    rows = [
        (name, quality.calibration_error, quality.roc_area, quality.log_loss)
        for name, quality in judgement.qualities.items()
    ]
    Table.of(title, columns, rows, form=".4f").show(console or Console())


def write_judgement(judgement: AcceptanceReport, path: str | Path) -> None:
    """Write an evaluation, including its bins, as a JSON file."""
    write_document(path, _KIND, judgement)


def draw_judgement(judgement: AcceptanceReport, path: str | Path) -> None:
    """Plot observed against predicted acceptance for each predictor, as a PNG file.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    figure = page(6.0, 5.4)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="#B0B0B0", linewidth=1)
    largest = max(group.count for quality in judgement.qualities.values() for group in quality.bins)
    rows = zip(judgement.qualities.items(), COLOURS, MARKERS, strict=False)
    for (name, quality), colour, marker in rows:
        xs = [group.predicted for group in quality.bins]
        ys = [group.observed for group in quality.bins]
        sizes = [12 + 120 * group.count / largest for group in quality.bins]
        text = f"{name} (error {quality.calibration_error:.3f}, ROC {quality.roc_area:.3f})"
        style = {"marker": marker, "edgecolors": "none", "alpha": 0.8}
        axes.plot(xs, ys, color=colour, linewidth=1)
        axes.scatter(xs, ys, s=sizes, color=colour, label=text, **style)
    title = "Reliability; larger marks hold more tokens"
    label(axes, title, "predicted acceptance", "observed acceptance", "both")
    axes.legend(fontsize=8, frameon=False, labelcolor=INK)
    notes = [f"{judgement.positions} tokens", f"{judgement.prompts} prompts not trained on"]
    save(figure, path, notes, 80, 10)
