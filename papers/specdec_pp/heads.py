"""Compare given acceptance heads, and heads trained with a grid of settings.

The grid of training settings is from Huang et al. 2024, appendix C.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

from transformers import PreTrainedModel

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
from papers.config import TimeLimit
from papers.specdec_pp.result import HeadRow
from papers.specdec_pp.rules import head_label, head_spec
from papers.specdec_pp.run_settings import (
    DEPTHS,
    EPOCHS,
    PAPER_THRESHOLDS,
    REJECT_WEIGHTS,
    THRESHOLDS,
)


def heads_of(config_heads: Sequence[str], draft: PreTrainedModel) -> list[AcceptanceHead]:
    """Return the heads to measure: the given heads, or the built-in head.

    Raises:
        ConfigError: A head cannot be read, or belongs to a different draft model.
    """
    if config_heads:
        return [AcceptanceHead.load(folder, draft) for folder in config_heads]
    try:
        return [AcceptanceHead.shipped(draft)]
    except ConfigError as error:
        raise ConfigError(
            "paper specdec_pp: no built-in head fits this draft model. Train a head (`paceline"
            f" head`) and give its folder with --head. [{error}]"
        ) from error


def check_recordings(folders: Sequence[str], draft: PreTrainedModel) -> None:
    """Check that all recordings use this draft model, before anything is measured.

    Raises:
        ConfigError: A recording uses a different draft model, or cannot be read.
    """
    fingerprint, _ = model_identity(draft)
    for folder in folders:
        recorded = read_recording(folder).settings["draft_fingerprint"]
        if recorded != fingerprint:
            raise ConfigError(
                f"paper specdec_pp: --recording {folder!r}: got a recording of draft model"
                f" {recorded[:12]}; expected {fingerprint[:12]}. Record this pair (`paceline head"
                " record`)."
            )


def rows_of(folders: Sequence[str], heads: Sequence[AcceptanceHead]) -> list[HeadRow]:
    """Return a row for each given head, listing the methods in figure 4 that use it."""
    rows = []
    for index, head in enumerate(heads):
        methods = {
            str(threshold): head_spec(folders[index:], threshold)
            for threshold in (PAPER_THRESHOLDS if index else THRESHOLDS)
        }
        rows.append(
            _row(head_label(folders[index]) if folders else "the shipped head", head, methods)
        )
    return rows


def train_grid(
    folders: Sequence[str], seconds: float, seed: int, progress: bool
) -> list[tuple[str, AcceptanceHead]]:
    """Train a head for every w_rej and D, on the hidden state only, as in the paper.

    Args:
        folders: Folders of the recordings.
        seconds: Time in seconds after which no further training starts, but at least one head is
            trained; 0 trains all heads.
        seed: Random seed.
        progress: Whether to show a progress bar.
    Returns:
        The label and the head for each setting.
    Raises:
        ConfigError: A recording cannot be read, the recordings use different draft models, or there
            are too few prompts.
    """
    heads: list[tuple[str, AcceptanceHead]] = []
    recordings = [read_recording(folder) for folder in folders]
    for depth, weight in TimeLimit(seconds).within(product(DEPTHS, REJECT_WEIGHTS)):
        recipe = TrainConfig(
            depth=depth, reject_weight=weight, scalars=False, epochs=EPOCHS, seed=seed
        )
        heads.append((f"w_rej {weight:g}, D {depth}", train(recordings, recipe, progress)))
    return heads


def grid_makers(
    heads: Sequence[tuple[str, AcceptanceHead]],
) -> tuple[list[HeadRow], dict[str, Maker]]:
    """Return the table rows for trained heads, and factories for their drafters."""
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
