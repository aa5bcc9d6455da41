"""Evaluate a draft model: accepted tokens per chain, and forward-pass costs."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor
from transformers import PreTrainedModel

from paceline.core.hidden_state_log import HiddenStateLog
from paceline.core.request import Request, SamplingParams
from paceline.core.tree import DraftTree
from paceline.errors import ConfigError
from paceline.model.cached_lm import CachedLM
from paceline.model.eagle.modules import layers_read, states_shape
from paceline.model.model_view import ModelView
from paceline.model.pairing import pair, shared_vocabulary
from paceline.model.vocabulary import SharedVocabulary
from paceline.report.documents import DocumentKind
from paceline.report.tables import Column, Table
from paceline.training.draft.chains import Chains, expected_chains
from paceline.training.draft.rows import Rows, hidden_of_rows, shifted
from paceline.training.target_states import read_states
from paceline.training.text_chunks import TextChunk

LENGTHS = tuple(range(1, 9))  # K, of which the best is looked for
_FORWARDS, _CONTEXT = 24, 160  # timed, behind so many tokens
ALL = "all"


@dataclass(frozen=True, slots=True)
class Gain:
    """What chains of `length` would bring: accepted tokens per chain, and time per token over
    plain decoding's.
    """

    length: int
    accepted: float
    speed: float


@dataclass(frozen=True, slots=True)
class DraftJudgement:
    """What a draft is worth.

    Attributes:
        answers, tokens: that it was judged on, greedy ones.
        chains: by category of prompt, and of all; of `length` tokens each.
        target_seconds: of a forward of the target with 1, 2, ... tokens. draft_seconds: of a draft
            forward.
        gains: by K.
    """

    answers: int
    tokens: int
    length: int
    chains: dict[str, Chains]
    target_seconds: list[float]
    draft_seconds: float
    gains: list[Gain]

    @property
    def cost_ratio(self) -> float:
        """A forward of the draft over one of the target."""
        return self.draft_seconds / self.target_seconds[0]

    @property
    def best(self) -> Gain:
        """The gain of the best K."""
        return max(self.gains, key=lambda gain: gain.speed)


JUDGEMENT_KIND = DocumentKind("draft judgement", 1, DraftJudgement)


@torch.no_grad()
def agreements(
    model: PreTrainedModel,
    stretches: Iterable[TextChunk],
    kept: Tensor | None = None,
    shared: SharedVocabulary | None = None,
) -> list[np.ndarray[Any, Any]]:
    """Return for each answer which of its tokens the draft's arg-max is: float64 [tokens], 0 or 1.

    Args:
        kept: ids, ascending, of the tokens that the draft may say; None = what its head says.
        shared: what the draft shares with the target; None = the whole vocabulary.
    """
    decoder: Any = model.get_decoder()
    head: Any = model.get_output_embeddings()
    found = []
    for stretch in stretches:
        token_ids = stretch.token_ids.astype(np.int64)
        ids = torch.from_numpy(token_ids if shared is None else shared.readable(token_ids))[
            None
        ].to(model.device)
        hidden = decoder(input_ids=ids, use_cache=False).last_hidden_state[
            0, stretch.first - 1 : -1
        ]
        if kept is None:
            logits = head(hidden)
            guesses = (logits if shared is None else shared.logits(logits)).argmax(-1)
        else:
            guesses = kept[(hidden @ head.weight[kept].T).argmax(-1).to(kept.device)]
        found.append(
            (guesses.cpu().numpy() == stretch.token_ids[stretch.first :]).astype(np.float64)
        )
    return found


@torch.no_grad()
def guesses_agree(model: PreTrainedModel, stretch: TextChunk, length: int) -> np.ndarray[Any, Any]:
    """Return of a draft that reads states which tokens of an answer it says, by place in a
    chain: [length, tokens], 0 or 1.
    """
    assert stretch.states is not None, "read before"
    states = stretch.states.to(model.device, model.dtype)
    ids = torch.from_numpy(stretch.token_ids).long().to(model.device)
    rows = Rows.judged(len(ids), length, stretch.first)
    head: Any = model.get_output_embeddings()
    embedding, decoder = model.get_input_embeddings(), model.get_decoder()
    made = head.out(hidden_of_rows(embedding, decoder, ids[None], shifted(states[None]), rows)[0])
    asked = ((rows.places >= stretch.first - 1) & (rows.places < len(ids) - 1)).nonzero()[:, 0]
    following = rows.places[asked] + 1
    right = (head.guess(made[asked.to(model.device)]) == ids[following.to(model.device)]).cpu()
    found = np.zeros((length, len(ids) - stretch.first))
    found[rows.guessed[asked].numpy(), (following - stretch.first).numpy()] = right.numpy()
    return found


def judge(
    model: PreTrainedModel, stretches: Sequence[TextChunk], length: int, kept: Tensor | None = None
) -> Chains:
    """Return the acceptance of the draft's chains of `length` on answers.

    Args:
        model: Draft model.
        stretches: Answers with their prompts.
        length: Draft tokens per chain.
        kept: Token ids of the reduced draft vocabulary, as in `agreements`.
    """
    return expected_chains(agreements(model, stretches, kept), length)


def evaluate(
    draft: CachedLM, target: CachedLM, answers: Sequence[TextChunk], length: int
) -> DraftJudgement:
    """Judge a draft on the target's greedy answers, and time both.

    Raises:
        ConfigError: no answers.
    """
    if not answers:
        raise ConfigError(
            "draft evaluate: got no answer; expected some. Record some with `paceline record`."
        )
    pair(draft, target.model)
    if draft.uses_target_states:
        read = read_states(target, answers, layers_read(draft.model), progress=True)
        drafting = ModelView(draft.model, draft.products).module  # it guesses as it is used
        agreed = [
            guesses_agree(drafting, replace(one, states=states), max(*LENGTHS, length))
            for one, states in zip(answers, read, strict=True)
        ]
    else:
        agreed = agreements(
            draft.model, answers, shared=shared_vocabulary(draft.model, target.model)
        )
    by_category = defaultdict(list)
    for stretch, one in zip(answers, agreed, strict=True):
        by_category[stretch.category or ALL].append(one)
    chains = {name: expected_chains(group, length) for name, group in sorted(by_category.items())}
    text = max(answers, key=len).token_ids.tolist()
    target_seconds = [forward_seconds(target, text, width) for width in range(len(LENGTHS) + 1)]
    draft_seconds = forward_seconds(draft, text, 0)
    gains = []
    for count in LENGTHS:
        accepted = expected_chains(agreed, count).per_chain
        step = target_seconds[count] + count * draft_seconds
        gains.append(Gain(count, accepted, (1 + accepted) * target_seconds[0] / step))
    return DraftJudgement(
        len(answers),
        sum(one.shape[-1] for one in agreed),
        length,
        {**chains, ALL: expected_chains(agreed, length)},
        target_seconds,
        draft_seconds,
        gains,
    )


def forward_seconds(model: CachedLM, token_ids: list[int], width: int) -> float:
    """Return the median seconds of a forward pass over a token and a chain of `width`."""
    ids = (token_ids * (1 + _CONTEXT // len(token_ids)))[:_CONTEXT]
    request = Request(ids, SamplingParams(max_new_tokens=_FORWARDS))
    if model.uses_target_states:
        request.states = HiddenStateLog(layers_read(model.model))
        request.states.write(
            0, torch.zeros(len(ids) - 1, *states_shape(model.model), device=model.device)
        )
    model.open(request)
    seconds = []
    try:
        for _ in range(_FORWARDS):
            begin = time.perf_counter()
            model.forward([request], [DraftTree.chain(ids[:width])])
            seconds.append(time.perf_counter() - begin)
            model.commit([()])
            model.rewind(request, len(ids) - 1)
    finally:
        model.close(request)
    return median(seconds[1:])


def print_draft_judgement(judgement: DraftJudgement, console: Console | None = None) -> None:
    """Print what its chains are worth by kind of prompt, what a forward costs, and what drafting
    would bring.
    """
    console = console or Console()
    names = [
        Column("prompts"),
        "tokens",
        "agree",
        f"accepted per chain of {judgement.length}",
        *(f"{place}." for place in range(1, judgement.length + 1)),
    ]
    rows = [
        (name, one.places, one.agreement, one.per_chain, *one.by_position)
        for name, one in judgement.chains.items()
    ]
    title = (
        f"{judgement.answers} greedy answers; chance of each place of a chain, given those before"
    )
    Table.of(title, names, rows, form=".3f").show(console)
    target, draft = 1000 * judgement.target_seconds[0], 1000 * judgement.draft_seconds
    title = (
        f"forward of the target {target:.2f} ms, of the draft {draft:.2f} ms (ratio"
        f" {judgement.cost_ratio:.3f})"
    )
    gains = [(str(one.length), one.accepted, one.speed) for one in judgement.gains]
    Table.of(
        title, [Column("K"), "accepted per chain", "speed over plain decoding"], gains, form=".3f"
    ).show(console)
