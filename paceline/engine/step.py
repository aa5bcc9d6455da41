"""The one step all decoding is made of: propose, forward, verify, commit, observe."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as ListLike

from torch import Tensor

from paceline.engine.drafter import Drafter, Outcome, check_trees, untouched
from paceline.engine.model import CachedLM
from paceline.engine.sequence import Sequence
from paceline.engine.spending import Spending
from paceline.engine.tree import EMPTY_TREE, DraftTree
from paceline.engine.verify import verify as verify_batch
from paceline.engine.verify import with_top_tokens

Verifier = Callable[[ListLike[Sequence], ListLike[DraftTree], Tensor], list[Outcome]]


def decode_step(
    model: CachedLM,
    drafter: Drafter,
    seqs: ListLike[Sequence],
    max_nodes: list[int],
    verify: Verifier = verify_batch,
    spending: Spending | None = None,
) -> list[Outcome]:
    """Advance every sequence by one forward of the target.

    A sequence with more pending tokens than a prefill chunk only moves a chunk forward; it has no outcome yet.

    Args:
        max_nodes: per sequence, the largest tree that may be verified.
        verify: the rule by which tokens are chosen.
        spending: cuts the trees to what pays; None = they are fed as proposed.
    Raises:
        DrafterError: the drafter broke its contract.
    """
    ready = [row for row, seq in enumerate(seqs) if model.reaches_end(seq)]
    trees = [EMPTY_TREE] * len(seqs)
    if ready:
        proposed = _propose(model, drafter, [seqs[row] for row in ready], [max_nodes[row] for row in ready])
        if spending is not None:
            proposed = spending.cut(proposed, len(seqs), max(min(seq.pending, model.prefill_chunk) for seq in seqs))
        for row, tree in zip(ready, proposed, strict=True):
            trees[row] = tree

    start = time.perf_counter()
    logits = model.forward(seqs, trees)
    if len(ready) < len(seqs):
        logits = logits[ready]
    outcomes = verify([seqs[row] for row in ready], [trees[row] for row in ready], logits)
    if drafter.top_k:
        outcomes = with_top_tokens(outcomes, logits, drafter.top_k)

    seconds = time.perf_counter() - start
    accepted: list[list[int]] = [[]] * len(seqs)
    for row, outcome in zip(ready, outcomes, strict=True):
        accepted[row] = outcome.accepted
    model.commit(accepted)
    for outcome in outcomes:
        outcome.seq.append(outcome.new_token_ids)
        outcome.seq.counters.drafted_tokens += len(outcome.tree)
        outcome.seq.counters.accepted_tokens += len(outcome.accepted)
    if outcomes:
        if spending is not None:
            spending.observe(outcomes, seconds)
        with untouched(drafter, seqs):
            drafter.observe(outcomes)
    return outcomes


def _propose(model: CachedLM, drafter: Drafter, seqs: list[Sequence], max_nodes: list[int]) -> list[DraftTree]:
    with untouched(drafter, seqs):
        trees = drafter.propose(seqs, max_nodes)
    check_trees(drafter, seqs, max_nodes, trees, model.vocab_size)
    return trees if model.takes_trees else [tree.best_chain() for tree in trees]
