"""Describe one step of an answer as JSON: new text, sources and draft tree.

To save space, the draft tree is stored in columns, with one entry per node:

    {"tokens": [318, 262, 11], "texts": [" is", " the", ","], "parents": [-1, 0, -1],
     "probabilities": [0.81, 0.6, 0.12], "origins": ["prompt", "prompt", "recycled"],
     "status": ["accepted", "accepted", "other"], "target_token": [null, null, 0]}
"""

from __future__ import annotations

from typing import Any

from paceline.core.drafter import Outcome
from paceline.core.origin import Origin
from paceline.core.tree import node_depths
from paceline.llm import Chunk
from paceline.text.detokenizer import REPLACEMENT, Detokenizer
from paceline.text.token_bytes import context_token_ids

ACCEPTED = "accepted"
OTHER = "other"  # the target chose another token
PARENT = "parent"  # the node's parent was not accepted
END = "end"  # the answer ended before the node
PROBE = "probe"  # not a candidate; the node only obtains the target's prediction after it


def step(chunk: Chunk, tokenizer: Any) -> dict[str, Any]:
    """Describe one step of an answer as a dictionary for the trace.

    Args:
        chunk: Chunk that contains the step's output.
        tokenizer: Tokenizer of the model.
    Returns:
        A dictionary with these entries.
        step, forwards: Number of steps, and number of target forward passes, so far.
        tokens, texts, origins: Ids, texts and sources of the new tokens.
        pieces: Fragments of text that became final in this step, as {text, origin, step, token}.
        `step` and `token` identify the token that a fragment belongs to.
        tree: Draft tree of the step, or None.
        done: Statistics for the whole answer; only in the last step.
    """
    description: dict[str, Any] = {
        "step": chunk.step,
        "forwards": chunk.forwards,
        "tokens": chunk.token_ids,
        "texts": _texts(tokenizer, chunk.token_ids),
        "origins": chunk.origins,
        "pieces": [
            {"text": text, "origin": mark.origin.word, "step": mark.step, "token": mark.token_index}
            for (text, _), mark in zip(chunk.pieces, chunk.marks, strict=True)
        ],
        "tree": None
        if chunk.outcome is None or not len(chunk.outcome.tree)
        else tree_of(chunk.outcome, tokenizer),
    }
    if chunk.completion is not None:
        stats = chunk.completion.stats
        description["done"] = {
            "finish_reason": chunk.completion.finish_reason,
            "new_tokens": stats.new_tokens,
            "target_forwards": stats.target_forwards,
            "tokens_per_forward": round(stats.tokens_per_forward, 4),
            "drafted_tokens": stats.drafted_tokens,
            "accepted_tokens": stats.accepted_tokens,
            "seconds": round(stats.seconds, 6),
            "batch_invariant": stats.batch_invariant,
        }
    return description


def tree_of(outcome: Outcome, tokenizer: Any) -> dict[str, list[Any]]:
    """Return the draft tree of a step in columns, with one entry per node.

    Args:
        outcome: Draft tree of the step, and the result of its verification.
        tokenizer: Tokenizer of the model.
    Returns:
        A dictionary with the following columns.
        tokens, texts: Ids and texts of the draft tokens.
        parents: Index of each node's parent; -1 stands for the newest token before the step.
        probabilities: Estimated probability that each token is accepted, given that its parent is
        accepted; null if the drafter does not estimate probabilities.
        origins: Sources of the draft tokens.
        status: Result of verification: accepted, other (the target chose another token), parent
        (the parent was not accepted), end (the answer had ended) or probe (the node was only
        scored).
        target_token: For the status `other`, the position of the target's choice in the step's
        list of new tokens; otherwise null.
    """
    tree = outcome.tree
    status, target_token = node_outcomes(outcome)
    return {
        "tokens": list(tree.token_ids),
        "texts": _texts(tokenizer, tree.token_ids),
        "parents": list(tree.parents),
        "probabilities": [None] * len(tree)
        if tree.confidence is None
        else [round(probability, 3) for probability in tree.confidence],
        "origins": [Origin.DRAFT.word] * len(tree)
        if tree.origins is None
        else [Origin(origin).word for origin in tree.origins],
        "status": status,
        "target_token": target_token,
    }


def node_outcomes(outcome: Outcome) -> tuple[list[str], list[int | None]]:
    """Return each node's status, and the position of the token that the target chose.

    The position is an index into the step's new tokens. It is None unless the status is `other`.
    """
    tree, new_tokens = outcome.tree, outcome.new_token_ids
    accepted = set(outcome.accepted[: len(new_tokens)])
    statuses: list[str] = []
    target_tokens: list[int | None] = []
    for node, depth in enumerate(node_depths(tree.parents).tolist()):
        parent, target_token = tree.parents[node], None
        if node in accepted:
            status = ACCEPTED
        elif node >= tree.num_candidates:
            status = PROBE
        elif parent >= 0 and parent not in accepted:
            status = PARENT
        elif depth > len(new_tokens):
            status = END
        else:
            status, target_token = OTHER, depth - 1
        statuses.append(status)
        target_tokens.append(target_token)
    return statuses, target_tokens


def _texts(tokenizer: Any, token_ids: list[int]) -> list[str]:
    """Return the text of each token, including any space at the token's start.

    A token that ends inside a multi-byte character is written as it is in the vocabulary.
    """
    detokenizer = Detokenizer(tokenizer, context_token_ids(tokenizer), skip_special_tokens=False)
    spelled = [detokenizer.peek(token) for token in token_ids]
    return [
        text
        if complete and REPLACEMENT not in text
        else tokenizer.convert_ids_to_tokens(token) or text
        for token, (text, _, complete) in zip(token_ids, spelled, strict=True)
    ]
