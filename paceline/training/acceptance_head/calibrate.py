"""Measure what each stopping threshold costs, by decoding: the curve from which `threshold=auto`
chooses.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from transformers import PreTrainedModel

from paceline.core.request import SamplingParams
from paceline.drafters.specdec_pp.card import ThresholdPoint
from paceline.drafters.specdec_pp.drafter import SpecDecPP, SpecDecPPOptions
from paceline.drafters.specdec_pp.head import AcceptanceHead
from paceline.errors import ConfigError
from paceline.llm import LLM
from paceline.model.loading import draft_lm
from paceline.report.progress import progress_bar
from paceline.training.acceptance_head.recording import Recording

_SAMPLING = ("max_new_tokens", "temperature", "top_k", "top_p", "min_p")
THRESHOLDS = tuple(round(0.05 * place, 2) for place in range(1, 20))


def calibrate(
    head: AcceptanceHead,
    recordings: Sequence[Recording],
    target: PreTrainedModel,
    draft: PreTrainedModel,
    limit: int = 0,
    thresholds: Sequence[float] = THRESHOLDS,
    progress: bool = False,
) -> AcceptanceHead:
    """Return the head with a measured curve: every threshold decodes the development prompts, as
    they were recorded.

    No budget has a say: it would cut what a threshold drafts to what pays on this machine.

    Args:
        head: the head to measure.
        recordings: with the prompts that the head's calibration was fitted on, and how they are
            answered.
        target: the target that decodes.
        draft: the head's draft model.
        limit: at most so many prompts of each recording, short and long ones; 0 = all.
        thresholds: the thresholds to measure.
        progress: whether to show a bar.
    Raises:
        ConfigError: the recordings have none of those prompts.
    """
    asked, params = _questions(head, recordings, limit)
    placed, draft_model = head.for_draft(draft), draft_lm(draft)
    curve = []
    with progress_bar(shown=progress) as bar:
        for threshold in bar.track(thresholds, description="decoding"):
            drafter = SpecDecPP(
                SpecDecPPOptions(threshold=threshold, budget=False), draft_model, placed
            )
            llm = LLM(target, drafter, max_batch=recordings[0].settings["batch"])
            stats = [completion.stats for completion in llm.generate(asked, params)]
            tokens = sum(one.new_tokens for one in stats)
            forwards = sum(one.target_forwards for one in stats)
            discarded = sum(one.drafted_tokens - one.accepted_tokens for one in stats)
            curve.append(ThresholdPoint(threshold, forwards / tokens, discarded / tokens))
    card = dataclasses.replace(head.card, curve=tuple(curve))
    return AcceptanceHead(card, head.tensors)


def _questions(
    head: AcceptanceHead, recordings: Sequence[Recording], limit: int
) -> tuple[list[list[int]], list[SamplingParams]]:
    """Return the development prompts of the recordings, and how each is answered."""
    wanted = head.card.dev_names
    asked: list[list[int]] = []
    params: list[SamplingParams] = []
    for recording in recordings:
        options = {name: recording.settings[name] for name in _SAMPLING}
        places = [place for place, name in enumerate(recording.names) if name in wanted]
        for place in places[
            :: math.ceil(len(places) / limit) if limit else 1
        ]:  # spread over the lengths
            asked.append(recording.prompt_ids[place])
            params.append(SamplingParams(**options, seed=recording.settings["seed"] + place))
    if not asked:
        raise ConfigError(
            "head calibrate: got no development prompts of this head; expected a recording that it"
            " was trained on. Give that one."
        )
    return asked, params


def print_curve(head: AcceptanceHead, console: Console | None = None) -> None:
    """Print what each threshold costs."""
    table = Table(box=None, pad_edge=False)
    for heading in ("threshold", "verification rate", "discard rate"):
        table.add_column(heading, justify="right")
    for point in head.card.curve:
        table.add_row(
            f"{point.threshold:.2f}", f"{point.verification_rate:.4f}", f"{point.discard_rate:.4f}"
        )
    (console or Console()).print(table)
