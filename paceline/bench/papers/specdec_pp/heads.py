"""Acceptance heads beside one another: those that came, and a grid trained on recordings (Huang
et al. 2024, appendix C.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

from transformers import PreTrainedModel

from paceline.bench.papers.config import TimeLimit
from paceline.bench.papers.specdec_pp.result import HeadRow
from paceline.bench.papers.specdec_pp.rules import (
    PAPER_THRESHOLDS,
    THRESHOLDS,
    head_label,
    head_spec,
)
from paceline.bench.run import Maker
from paceline.drafters.specdec_pp.drafter import SpecDecPP, SpecDecPPOptions
from paceline.drafters.specdec_pp.head import AcceptanceHead
from paceline.errors import ConfigError
from paceline.model.cached_lm import CachedLM
from paceline.model.identity import model_identity
from paceline.training.acceptance_head.evaluate import HEAD
from paceline.training.acceptance_head.recording import read_recording
from paceline.training.acceptance_head.settings import TrainConfig
from paceline.training.acceptance_head.train import train

REJECT_WEIGHTS = (6.0, 1.0, 3.0, 12.0)  # w_rej
DEPTHS = (
    3,
    1,
    0,
    2,
    4,
)  # D; of both the paper's choice is the first, for a run that has not the time for all
GRID = len(REJECT_WEIGHTS) * len(DEPTHS)
EPOCHS = 3  # as in the paper's public code


def heads_of(config_heads: Sequence[str], draft: PreTrainedModel) -> list[AcceptanceHead]:
    """Return the heads a paper is measured with: those that came, else the shipped one.

    Raises:
        ConfigError: one that cannot be read, or is for another draft model.
    """
    if config_heads:
        return [AcceptanceHead.load(folder, draft) for folder in config_heads]
    try:
        return [AcceptanceHead.shipped(draft)]
    except ConfigError as error:
        raise ConfigError(
            "paper specdec_pp: got no --head; expected one for this draft model, as the shipped"
            " heads belong to the shipped ones."
            f" Train a head (`paceline head`) and give its folder with --head. [{error}]"
        ) from error


def check_recordings(folders: Sequence[str], draft: PreTrainedModel) -> None:
    """Refuse recordings of another draft model, before anything is measured.

    Raises:
        ConfigError: one of them, or one that cannot be read.
    """
    fingerprint, _ = model_identity(draft)
    for folder in folders:
        theirs = read_recording(folder).settings["draft_fingerprint"]
        if theirs != fingerprint:
            raise ConfigError(
                f"paper specdec_pp: --recording {folder!r}: got one of draft {theirs[:12]};"
                " expected one of this draft model,"
                f" {fingerprint[:12]}. Record this pair (`paceline head record`)."
            )


def rows_of(folders: Sequence[str], heads: Sequence[AcceptanceHead]) -> list[HeadRow]:
    """Return what the cards say of the heads that came, and the methods of figure 4 that
    measured each.
    """
    rows = []
    for place, head in enumerate(heads):
        methods = {
            str(one): head_spec(folders[place:], one)
            for one in (PAPER_THRESHOLDS if place else THRESHOLDS)
        }
        rows.append(
            _row(head_label(folders[place]) if folders else "the shipped head", head, methods)
        )
    return rows


def train_grid(
    folders: Sequence[str], seconds: float, seed: int, progress: bool
) -> list[tuple[str, AcceptanceHead]]:
    """Train heads that read the hidden state alone, as the paper's do, for every w_rej and D, with
    a label each.

    Args:
        seconds: none is begun after them, but one is trained at least; 0 = all.
    Raises:
        ConfigError: recordings that cannot be read or are of different drafts, or too few prompts.
    """
    found: list[tuple[str, AcceptanceHead]] = []
    recordings = [read_recording(folder) for folder in folders]
    for depth, weight in TimeLimit(seconds).within(product(DEPTHS, REJECT_WEIGHTS)):
        recipe = TrainConfig(
            depth=depth, reject_weight=weight, scalars=False, epochs=EPOCHS, seed=seed
        )
        found.append((f"w_rej {weight:g}, D {depth}", train(recordings, recipe, progress)))
    return found


def grid_makers(
    heads: Sequence[tuple[str, AcceptanceHead]],
) -> tuple[list[HeadRow], dict[str, Maker]]:
    """Return rows of trained heads, and the drafters to be measured for them."""
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
        label,
        methods,
        head.card.depth,
        recipe.get("reject_weight"),
        judged.get("calibration_error"),
        judged.get("roc_area"),
    )
