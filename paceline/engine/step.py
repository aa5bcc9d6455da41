"""The one step all decoding is made of: propose, forward, verify, commit, observe."""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from collections.abc import Sequence as ListLike

import torch

from paceline.engine.drafter import Drafter, Outcome, untouched
from paceline.engine.drafting import Drafting, Part
from paceline.engine.logprobs import score_prompts
from paceline.engine.model import CachedLM
from paceline.engine.node_logits import NodeLogits
from paceline.engine.rotary import start_anew, within
from paceline.engine.sequence import Sequence
from paceline.engine.spending import Spending
from paceline.engine.tree import EMPTY_TREE, DraftTree
from paceline.engine.tree_rules import check_trees
from paceline.engine.verify import verify as verify_batch
from paceline.engine.verify import with_top_tokens

Verifier = Callable[[ListLike[Sequence], ListLike[DraftTree], NodeLogits], list[Outcome]]


def decode_step(
    model: CachedLM, drafter: Drafter, seqs: ListLike[Sequence], max_nodes: list[int], verify: Verifier = verify_batch
) -> list[Outcome]:
    """Advance every sequence by one forward of the target, all with one drafter, whose trees are fed as proposed.

    Args:
        max_nodes: per sequence, the largest tree that may be verified.
        verify: the rule by which tokens are chosen.
    Raises:
        DrafterError: the drafter broke its contract.
    """
    part = Part(Drafting(drafter, None), list(seqs), max_nodes)
    joint_step(model, [part], verify)
    if part.error is not None:
        raise part.error
    return part.outcomes


def joint_step(
    model: CachedLM,
    parts: ListLike[Part],
    verify: Verifier = verify_batch,
    spending: Spending | None = None,
) -> None:
    """Advance the sequences of all parts by one forward of the target; their outcomes are in their parts.

    A sequence with more pending tokens than a prefill chunk only moves a chunk forward; it has no outcome yet. Where a drafter
    raises while it proposes, or has before, its sequences are left out.

    Args:
        spending: cuts the trees to what pays; None = they are fed as proposed.
    """
    start = time.perf_counter()
    for part in parts:
        if part.error is None:
            _propose(model, part)
    parts = [part for part in parts if part.error is None]
    seqs = parts[0].seqs if len(parts) == 1 else sorted((seq for part in parts for seq in part.seqs), key=lambda seq: seq.slot)
    if not seqs:
        return
    asked = any(part.ready and part.drafting.worth is not None for part in parts)
    if spending is not None and asked:
        pending = [min(seq.pending, model.prefill_chunk) for seq in seqs]
        spending.cut(parts, len(seqs), sum(pending) if model.packs else len(seqs) * max(pending), model.packs)
    drafted = {seq.id: tree for part in parts for seq, tree in zip(part.ready, part.trees, strict=True)}
    ready = [row for row, seq in enumerate(seqs) if seq.id in drafted]
    trees = [drafted.get(seq.id, EMPTY_TREE) for seq in seqs]

    foreseeing = any(part.foresight is not None for part in parts)
    kept = not model.reads_states and any(seq.states is not None for seq in seqs)  # a draft that steps reads its target's
    layers = _layers(seqs) if kept else ()
    fed = model.forward_with_states(seqs, trees, layers, kept) if foreseeing or kept else model.forward_nodes(seqs, trees)
    if any(seq.scoring for seq in seqs):
        fed = score_prompts(seqs, fed, model.prefill_chunk)
    logits = fed.those(ready) if len(ready) < len(seqs) else fed
    top_k = max(part.drafting.drafter.top_k for part in parts)
    if top_k and ready:
        logits = logits.with_top(top_k)
    outcomes = verify([seqs[row] for row in ready], [trees[row] for row in ready], logits)
    again = {outcome.seq: outcome.seq.cached for outcome in outcomes if not outcome.new_token_ids}
    if again:
        rows = [row for row, outcome in enumerate(outcomes) if outcome.seq not in again]
        outcomes, ready, logits = [outcomes[row] for row in rows], [ready[row] for row in rows], logits.those(rows)
        _leave_out(again, parts)
    _hand_out(outcomes, parts, logits)
    accepted: list[list[int]] = [[]] * len(seqs)
    for row, outcome in zip(ready, outcomes, strict=True):
        accepted[row] = outcome.accepted
    if kept:
        _keep_states(seqs, fed, layers, accepted)
    model.commit(accepted)
    for seq, cached in again.items():
        model.rewind(seq, cached)
        model.clear_behind(seq)
    for outcome in outcomes:
        if outcome.unclean:
            model.clear_behind(outcome.seq)
        outcome.seq.append(outcome.new_token_ids, outcome.logprobs or ())
        outcome.seq.without_draft = False
        outcome.seq.counters.drafted_tokens += len(outcome.tree)
        outcome.seq.counters.accepted_tokens += len(outcome.accepted)
    for part in parts:
        _observe(part)
    if spending is not None and asked and not again:
        spending.observe(parts, time.perf_counter() - start)
    if (switch := model.architecture.restart_length) is not None:
        for outcome in outcomes:
            start_anew(outcome.seq, switch)
    for part in parts:
        part.outcomes += [_ended(seq) for seq in part.seqs if seq.fed_only and not seq.pending]


def _ended(seq: Sequence) -> Outcome:
    """End a sequence that generates no tokens, now that its prompt is fed."""
    seq.finish_reason = "length"
    return Outcome(seq, EMPTY_TREE, [], [], [], logprobs=None if seq.params.logprobs is None else [])


def _layers(seqs: ListLike[Sequence]) -> tuple[int, ...]:
    """Return the layers whose states are to be kept for any of the sequences."""
    return tuple(sorted({layer for seq in seqs if seq.states is not None for layer in seq.states.layers}))


def _keep_states(
    seqs: ListLike[Sequence], logits: NodeLogits, layers: tuple[int, ...], accepted: ListLike[ListLike[int]]
) -> None:
    """Keep the states of what stays in the cache, where a drafter has asked for them; before that is committed.

    Args:
        layers: those that `logits` has states of.
    """
    assert logits.states is not None, "asked for"
    assert logits.pending is not None, "asked for"
    for seq, start, pending, path in zip(seqs, logits.starts, logits.pending, accepted, strict=True):
        if seq.states is not None:
            states = torch.cat((pending, logits.states[[start, *(start + 1 + node for node in path)]]))
            if seq.states.layers != layers:
                states = states[:, [0, *(1 + layers.index(layer) for layer in seq.states.layers)]]
            seq.states.write(seq.cached, states)


def _propose(model: CachedLM, part: Part) -> None:
    """Ask a part's drafter for the trees of those of its sequences that are ready and generate tokens."""
    part.ready = [seq for seq in part.seqs if not seq.fed_only and model.reaches_end(seq)]
    if not part.ready:
        return
    limits = part.max_nodes
    if len(part.ready) < len(part.seqs):
        ready = {seq.id for seq in part.ready}
        limits = [limit for seq, limit in zip(part.seqs, limits, strict=True) if seq.id in ready]
    limits = [0 if seq.without_draft else limit for seq, limit in zip(part.ready, limits, strict=True)]
    drafter, before = part.drafting.drafter, part.drafting.drafter.forward_seconds
    try:
        with untouched(drafter, part.ready):
            trees = drafter.propose(part.ready, limits)
        check_trees(drafter, part.ready, limits, trees, model.vocab_size)
        if (switch := model.architecture.restart_length) is not None:
            trees = [within(tree, seq, switch) for tree, seq in zip(trees, part.ready, strict=True)]
        part.trees = trees if model.takes_trees else [tree.best_chain() for tree in trees]
    except Exception as error:
        part.error = error
    part.draft_seconds = drafter.forward_seconds - before


def _leave_out(again: Container[Sequence], parts: ListLike[Part]) -> None:
    """Take sequences that are to be fed again, without a draft tree, out of the parts; nothing is learnt of this step."""
    for part in parts:
        kept = [(seq, tree) for seq, tree in zip(part.ready, part.trees, strict=True) if seq not in again]
        for seq in part.ready:
            seq.without_draft = seq in again
        part.ready, part.trees = [seq for seq, _ in kept], [tree for _, tree in kept]
        part.flat, part.cost = None, 0.0


def _hand_out(outcomes: list[Outcome], parts: ListLike[Part], logits: NodeLogits) -> None:
    """Give every part the outcomes of its sequences, with the likeliest tokens its drafter asks for, there and further on."""
    rows = {outcome.seq.id: row for row, outcome in enumerate(outcomes)} if len(parts) > 1 else {}
    for part in parts:
        mine = [rows[seq.id] for seq in part.ready] if rows else range(len(outcomes))
        part.outcomes = [outcomes[row] for row in mine]
        top_k = part.drafting.drafter.top_k
        own = logits.those(mine) if top_k or part.foresight is not None else logits
        if top_k:
            part.outcomes = with_top_tokens(part.outcomes, own, top_k)
        if part.foresight is not None:
            start = time.perf_counter()
            part.outcomes = part.foresight.add_to(part.outcomes, own, part.foresees)
            part.draft_seconds += time.perf_counter() - start


def _observe(part: Part) -> None:
    """Show a part's drafter what the target said."""
    if part.outcomes:
        try:
            with untouched(part.drafting.drafter, part.ready):
                part.drafting.drafter.observe(part.outcomes)
        except Exception as error:
            part.error = error
