"""What a step of an answer did, as JSON: its text with where each piece came from, and its draft
tree with what became of it.

A tree is told in columns, node by node, so that it stays small:

    {"tokens": [318, 262, 11], "texts": [" is", " the", ","], "parents": [-1, 0, -1], "chances":
    [0.81, 0.6, 0.12],
     "origins": ["prompt", "prompt", "recycled"], "fates": ["accepted", "accepted", "other"],
     "instead": [null, null, 0]}
"""

from __future__ import annotations

from typing import Any

from paceline.core.drafter import Outcome
from paceline.core.origin import Origin
from paceline.core.tree import node_depths
from paceline.llm import Chunk
from paceline.text.detokenizer import REPLACEMENT, Detokenizer
from paceline.text.token_bytes import any_text

ACCEPTED = "accepted"
OTHER = "other"  # the target chose another token in its place: `instead`
PARENT = "parent"  # its parent was not accepted
END = "end"  # the answer ended before its place
PROBE = "probe"  # fed only to learn what the target says behind it


def step(chunk: Chunk, tokenizer: Any) -> dict[str, Any]:
    """Return what a step did.

    Args:
        tokenizer: of the model, for the texts of single tokens.
    Returns:
        step, forwards: steps and target forwards of the answer so far; tokens, texts, origins: of
            the new tokens; pieces: of
        the text that became certain, each {text, origin, step, token}, the latter its place in that
        step; tree: of the step (None without one); and with the last step `done`: counts of the
        whole answer.
    """
    told: dict[str, Any] = {
        "step": chunk.step,
        "forwards": chunk.forwards,
        "tokens": chunk.token_ids,
        "texts": _texts(tokenizer, chunk.token_ids),
        "origins": chunk.origins,
        "pieces": [
            {"text": text, "origin": mark.origin.word, "step": mark.step, "token": mark.place}
            for (text, _), mark in zip(chunk.pieces, chunk.marks, strict=True)
        ],
        "tree": None
        if chunk.outcome is None or not len(chunk.outcome.tree)
        else tree_of(chunk.outcome, tokenizer),
    }
    if chunk.completion is not None:
        stats = chunk.completion.stats
        told["done"] = {
            "finish_reason": chunk.completion.finish_reason,
            "new_tokens": stats.new_tokens,
            "target_forwards": stats.target_forwards,
            "tokens_per_forward": round(stats.tokens_per_forward, 4),
            "drafted_tokens": stats.drafted_tokens,
            "accepted_tokens": stats.accepted_tokens,
            "seconds": round(stats.seconds, 6),
            "batch_invariant": stats.batch_invariant,
        }
    return told


def tree_of(outcome: Outcome, tokenizer: Any) -> dict[str, list[Any]]:
    """Return the tree of a step in columns, one entry per node.

    Returns:
        tokens, texts, parents (-1 = the newest token before the step); chances given the parent,
        null where the drafter names none; origins; fates; instead: for `other` the place of the
        chosen token among the step's new ones, else null.
    """
    tree = outcome.tree
    fates, instead = fates_of(outcome)
    return {
        "tokens": list(tree.token_ids),
        "texts": _texts(tokenizer, tree.token_ids),
        "parents": list(tree.parents),
        "chances": [None] * len(tree)
        if tree.confidence is None
        else [round(chance, 3) for chance in tree.confidence],
        "origins": [Origin.DRAFT.word] * len(tree)
        if tree.origins is None
        else [Origin(one).word for one in tree.origins],
        "fates": fates,
        "instead": instead,
    }


def fates_of(outcome: Outcome) -> tuple[list[str], list[int | None]]:
    """Return what became of every node, and where it was `other` the place of the chosen token
    among the new ones.
    """
    tree, said = outcome.tree, outcome.new_token_ids
    kept = set(outcome.accepted[: len(said)])
    fates: list[str] = []
    instead: list[int | None] = []
    for node, depth in enumerate(node_depths(tree.parents).tolist()):
        parent, place = tree.parents[node], None
        if node in kept:
            fate = ACCEPTED
        elif node >= tree.candidates:
            fate = PROBE
        elif parent >= 0 and parent not in kept:
            fate = PARENT
        elif depth > len(said):
            fate = END
        else:
            fate, place = OTHER, depth - 1
        fates.append(fate)
        instead.append(place)
    return fates, instead


def _texts(tokenizer: Any, token_ids: list[int]) -> list[str]:
    """The text of each token behind other text; a part of a character is shown as the tokenizer
    writes it.
    """
    behind = Detokenizer(tokenizer, any_text(tokenizer), skip_special_tokens=False)
    spelled = [behind.peek(token) for token in token_ids]
    return [
        text
        if whole and REPLACEMENT not in text
        else tokenizer.convert_ids_to_tokens(token) or text
        for token, (text, _, whole) in zip(token_ids, spelled, strict=True)
    ]
