"""Evaluate a draft model: accepted tokens per chain, cost and expected speed."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor
from transformers import PreTrainedModel

from paceline.core.hidden_state_log import HiddenStateLog
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
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
from paceline.training.draft.settings import CHAIN_LENGTHS, TIMED_CONTEXT, TIMED_FORWARDS
from paceline.training.target_states import read_states
from paceline.training.text_chunks import TextChunk

ALL = "all"


@dataclass(frozen=True, slots=True)
class Gain:
    """The expected speed-up from draft chains of one length.

    Attributes:
        length: Number of draft tokens per chain, K.
        accepted: Expected number of accepted tokens per chain.
        speed: Decoding speed relative to plain decoding; above 1 means faster.
    """

    length: int
    accepted: float
    speed: float


@dataclass(frozen=True, slots=True)
class DraftJudgement:
    """The evaluation of a draft model on greedy answers of the target.

    Attributes:
        answers: Number of answers.
        tokens: Number of tokens in the answers.
        length: Number of draft tokens per chain in `chains`.
        chains: Acceptance of draft chains per prompt category, and over all prompts.
        target_seconds: Seconds per target forward pass over 1, 2, ... tokens.
        draft_seconds: Seconds per forward pass of the draft model over one token.
        gains: Expected speed-up for each chain length.
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
        """Return the time of a draft forward pass, relative to a target forward pass."""
        return self.draft_seconds / self.target_seconds[0]

    @property
    def best(self) -> Gain:
        """Return the result for the chain length with the highest expected speed."""
        return max(self.gains, key=lambda gain: gain.speed)


JUDGEMENT_KIND = DocumentKind("draft judgement", 1, DraftJudgement)


@torch.no_grad()
def agreements(
    model: PreTrainedModel,
    chunks: Iterable[TextChunk],
    token_ids: Tensor | None = None,
    shared: SharedVocabulary | None = None,
) -> list[NDArray[np.float64]]:
    """Compare each answer token with the draft model's most likely token.

    Args:
        model: Draft model that does not read the target's hidden states.
        chunks: Answers with their prompts.
        token_ids: Token ids of the reduced draft vocabulary, in ascending order. None means that
            the draft model can predict every token of its LM head.
        shared: Vocabulary that the draft model shares with the target. None means that both models
            have the same vocabulary.
    Returns:
        For each answer, an array [tokens]: 1 if the two tokens are equal, otherwise 0.
    """
    decoder: Any = model.get_decoder()
    head: Any = model.get_output_embeddings()
    results = []
    for chunk in chunks:
        text = chunk.token_ids.astype(np.int64)
        ids = torch.from_numpy(text if shared is None else shared.readable(text))[None]
        states = decoder(input_ids=ids.to(model.device), use_cache=False).last_hidden_state
        hidden = states[0, chunk.first - 1 : -1]
        if token_ids is None:
            logits = head(hidden)
            guesses = (logits if shared is None else shared.logits(logits)).argmax(-1)
        else:
            guesses = token_ids[(hidden @ head.weight[token_ids].T).argmax(-1).to(token_ids.device)]
        agreed = guesses.cpu().numpy() == chunk.token_ids[chunk.first :]
        results.append(agreed.astype(np.float64))
    return results


@torch.no_grad()
def guesses_agree(model: PreTrainedModel, chunk: TextChunk, length: int) -> NDArray[np.float64]:
    """Compare an answer with the draft tokens of a model that reads target states.

    Args:
        model: Draft model, attached to its target.
        chunk: Answer with its prompt and the target's hidden states.
        length: Number of draft tokens per chain.
    Returns:
        An array [chain positions, tokens]: 1 if the draft model's most likely token at the chain
        position equals the answer token, otherwise 0.
    """
    assert chunk.states is not None, "read before the evaluation"
    states = chunk.states.to(model.device, model.dtype)
    ids = torch.from_numpy(chunk.token_ids).long().to(model.device)
    rows = Rows.for_evaluation(len(ids), length, chunk.first)
    head: Any = model.get_output_embeddings()
    embedding, decoder = model.get_input_embeddings(), model.get_decoder()
    hidden = hidden_of_rows(embedding, decoder, ids[None], shifted(states[None]), rows)[0]
    drafted = head.out(hidden)
    return agreement_by_position(
        rows, chunk, length, lambda drafting: head.guess(drafted[drafting.to(model.device)])
    )


def agreement_by_position(
    rows: Rows, chunk: TextChunk, length: int, guess: Callable[[Tensor], Tensor]
) -> NDArray[np.float64]:
    """Compare an answer with the draft tokens at every position of a chain.

    Args:
        rows: Rows of the forward pass, from `Rows.for_evaluation`.
        chunk: Answer with its prompt.
        length: Number of draft tokens per chain.
        guess: Function that receives the indices of n rows, and returns the draft model's most
            likely token after each of these rows, [n].
    Returns:
        An array [chain positions, tokens]: 1 if the draft token equals the answer token, otherwise
        0.
    """
    ids, positions = torch.from_numpy(chunk.token_ids).long(), rows.positions
    drafting = ((positions >= chunk.first - 1) & (positions < len(ids) - 1)).nonzero()[:, 0]
    following = positions[drafting] + 1
    right = guess(drafting).cpu() == ids[following]
    agreed = np.zeros((length, len(ids) - chunk.first))
    agreed[rows.guessed[drafting].numpy(), (following - chunk.first).numpy()] = right.numpy()
    return agreed


def evaluate(
    draft: CachedLM, target: CachedLM, answers: Sequence[TextChunk], length: int
) -> DraftJudgement:
    """Evaluate a draft model on the target's greedy answers, and time both models.

    Args:
        draft: Draft model.
        target: Target model.
        answers: Greedy answers with their prompts.
        length: Number of draft tokens per chain, for acceptance by category.
    Raises:
        ConfigError: `answers` is empty.
    """
    if not answers:
        raise ConfigError("draft evaluate: no answers. Record some with `paceline record`.")
    agreed = _agreements_of(draft, target, answers, max(*CHAIN_LENGTHS, length))
    by_category = defaultdict(list)
    for chunk, agreement in zip(answers, agreed, strict=True):
        by_category[chunk.category or ALL].append(agreement)
    chains = {name: expected_chains(group, length) for name, group in sorted(by_category.items())}
    text = max(answers, key=len).token_ids.tolist()
    widths = range(len(CHAIN_LENGTHS) + 1)
    target_seconds = [forward_seconds(target, text, width) for width in widths]
    draft_seconds = forward_seconds(draft, text, 0)
    gains = []
    for count in CHAIN_LENGTHS:
        accepted = expected_chains(agreed, count).per_chain
        step = target_seconds[count] + count * draft_seconds
        gains.append(Gain(count, accepted, (1 + accepted) * target_seconds[0] / step))
    return DraftJudgement(
        len(answers),
        sum(agreement.shape[-1] for agreement in agreed),
        length,
        {**chains, ALL: expected_chains(agreed, length)},
        target_seconds,
        draft_seconds,
        gains,
    )


def _agreements_of(
    draft: CachedLM, target: CachedLM, answers: Sequence[TextChunk], length: int
) -> list[NDArray[np.float64]]:
    pair(draft, target.model)
    if not draft.uses_target_states:
        shared = shared_vocabulary(draft.model, target.model)
        return agreements(draft.model, answers, shared=shared)
    states = read_states(target, answers, layers_read(draft.model), progress=True)
    drafting = ModelView(draft.model, draft.products).module  # the same kernels as in decoding
    return [
        guesses_agree(drafting, replace(chunk, states=state), length)
        for chunk, state in zip(answers, states, strict=True)
    ]


def forward_seconds(model: CachedLM, token_ids: list[int], width: int) -> float:
    """Return the median seconds per forward pass over one token and a draft chain.

    Args:
        model: Model to time.
        token_ids: Token ids of a text, which is repeated to fill the context.
        width: Number of draft tokens in the chain.
    """
    ids = (token_ids * (1 + TIMED_CONTEXT // len(token_ids)))[:TIMED_CONTEXT]
    request = Request(ids, SamplingParams(max_new_tokens=TIMED_FORWARDS))
    if model.uses_target_states:
        request.states = HiddenStateLog(layers_read(model.model))
        request.states.write(
            0, torch.zeros(len(ids) - 1, *states_shape(model.model), device=model.device)
        )
    model.open(request)
    seconds = []
    try:
        for _ in range(TIMED_FORWARDS):
            begin = time.perf_counter()
            model.forward([request], [DraftTree.chain(ids[:width])])
            seconds.append(time.perf_counter() - begin)
            model.commit([()])
            model.rewind(request, len(ids) - 1)
    finally:
        model.close(request)
    return median(seconds[1:])


def print_draft_judgement(judgement: DraftJudgement, console: Console | None = None) -> None:
    """Print acceptance by category, the models' costs, and speed by chain length."""
    console = console or Console()
    names = [
        Column("prompts"),
        "tokens",
        "agree",
        f"accepted per chain of {judgement.length}",
        *(f"{position}." for position in range(1, judgement.length + 1)),
    ]
    rows = [
        (name, chains.places, chains.agreement, chains.per_chain, *chains.by_position)
        for name, chains in judgement.chains.items()
    ]
    title = (
        f"{judgement.answers} greedy answers; acceptance rate at each position of a chain, given"
        " those before"
    )
    Table.of(title, names, rows, form=".3f").show(console)
    target, draft = 1000 * judgement.target_seconds[0], 1000 * judgement.draft_seconds
    title = (
        f"forward pass of the target {target:.2f} ms, of the draft {draft:.2f} ms (ratio"
        f" {judgement.cost_ratio:.3f})"
    )
    names = [Column("K"), "accepted per chain", "speed over plain decoding"]
    gains = [(str(gain.length), gain.accepted, gain.speed) for gain in judgement.gains]
    Table.of(title, names, gains, form=".3f").show(console)
