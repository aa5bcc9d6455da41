"""Acceptance heads beside one another: those that came, and a grid trained on recordings (Huang et al. 2024, appendix C.3)."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from transformers import PreTrainedModel

from paceline import demo
from paceline.acceptance import AcceptanceHead
from paceline.acceptance_card import draft_identity
from paceline.bench.paper import HEADED
from paceline.bench.run import Maker
from paceline.bench.specdec_sweep import PAPER_THRESHOLDS, THRESHOLDS, head_label, head_spec
from paceline.drafters.specdec_pp import SpecDecPP, SpecDecPPOptions
from paceline.errors import ConfigError
from paceline.head.evaluate import HEAD
from paceline.head.recording import read_recording
from paceline.head.train import TrainConfig, train
from paceline.model import CachedLM

REJECT_WEIGHTS = (6.0, 1.0, 3.0, 12.0)  # w_rej
DEPTHS = (3, 1, 0, 2, 4)  # D; of both the paper's choice is the first, for a run that has not the time for all
GRID = len(REJECT_WEIGHTS) * len(DEPTHS)
EPOCHS = 3  # as in the paper's public code


@dataclass(frozen=True, slots=True)
class HeadRow:
    """A head and the methods that measured it.

    Attributes:
        methods: one per threshold.
        depth, reject_weight: D and w_rej. calibration_error, roc_area: on prompts it was not trained on. None = not known.
    """

    label: str
    methods: dict[str, str]
    depth: int | None
    reject_weight: float | None
    calibration_error: float | None
    roc_area: float | None


def heads_of(config_heads: Seq[str], draft: PreTrainedModel) -> list[AcceptanceHead]:
    """The heads a paper is measured with: those that came, else the shipped one.

    Raises:
        ConfigError: one that cannot be read, or is for another draft model.
    """
    if config_heads:
        return [AcceptanceHead.load(folder, draft) for folder in config_heads]
    try:
        return [AcceptanceHead.load(demo.HEAD, draft)]
    except ConfigError as error:
        raise ConfigError(
            f"paper {HEADED}: no --head came, and the shipped head belongs to the embedded draft model. Train one for this draft"
            f" model (`paceline head`) and give its folder with --head. [{error}]"
        ) from error


def check_recordings(folders: Seq[str], draft: PreTrainedModel) -> None:
    """Refuse recordings of another draft model, before anything is measured.

    Raises:
        ConfigError: one of them, or one that cannot be read.
    """
    fingerprint, _ = draft_identity(draft)
    for folder in folders:
        theirs = read_recording(folder).settings["draft_fingerprint"]
        if theirs != fingerprint:
            raise ConfigError(
                f"paper {HEADED}: --recording {folder!r} is of draft {theirs[:12]}, and this draft model is {fingerprint[:12]}."
                " Record this pair (`paceline head record`)."
            )


def rows_of(folders: Seq[str], heads: Seq[AcceptanceHead]) -> list[HeadRow]:
    """What the cards say of the heads that came, and the methods of figure 4 that measured each."""
    rows = []
    for place, head in enumerate(heads):
        folder = folders[place] if folders else None
        thresholds = THRESHOLDS if place == 0 else PAPER_THRESHOLDS
        methods = {str(threshold): head_spec(folder, threshold) for threshold in thresholds}
        rows.append(_row("the shipped head" if folder is None else head_label(folder), head, methods))
    return rows


def train_grid(folders: Seq[str], seconds: float, seed: int, progress: bool) -> list[tuple[str, AcceptanceHead]]:
    """Heads that read the hidden state alone, as the paper's do, for every w_rej and D, with a label each.

    Args:
        seconds: none is begun after them, but one is trained at least; 0 = all.
    Raises:
        ConfigError: recordings that cannot be read or are of different drafts, or too few prompts.
    """
    start = time.perf_counter()
    found: list[tuple[str, AcceptanceHead]] = []
    for depth, weight in product(DEPTHS, REJECT_WEIGHTS):
        if found and 0 < seconds < time.perf_counter() - start:
            break
        recipe = TrainConfig(depth=depth, reject_weight=weight, scalars=False, epochs=EPOCHS, seed=seed)
        found.append((f"w_rej {weight:g}, D {depth}", train(folders, recipe, progress)))
    return found


def grid_makers(heads: Seq[tuple[str, AcceptanceHead]]) -> tuple[list[HeadRow], dict[str, Maker]]:
    """Rows of trained heads, and the drafters to be measured for them."""
    rows: list[HeadRow] = []
    makers: dict[str, Maker] = {}
    for label, head in heads:
        methods = {str(threshold): f"{label}, h {threshold}" for threshold in PAPER_THRESHOLDS}
        rows.append(_row(label, head, methods))
        for threshold in PAPER_THRESHOLDS:
            makers[methods[str(threshold)]] = partial(_drafter, head, threshold)
    return rows, makers


def _drafter(head: AcceptanceHead, threshold: float, draft: CachedLM) -> SpecDecPP:
    return SpecDecPP(SpecDecPPOptions(threshold=threshold), draft, head)


def _row(label: str, head: AcceptanceHead, methods: dict[str, str]) -> HeadRow:
    judged: dict[str, Any] = head.card.metrics.get("held_out", {}).get(HEAD, {})
    recipe: dict[str, Any] = head.card.recipe.get("train", {})
    return HeadRow(
        label, methods, head.card.depth, recipe.get("reject_weight"), judged.get("calibration_error"), judged.get("roc_area")
    )
