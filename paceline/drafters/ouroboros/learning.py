"""What the pool learns from the target's answers to a tree: inspiration and refinement (Zhao et al. 2024, section 2.5).

Both are pure functions of an outcome. What is different here: the rule "every" learns from all nodes. A tree here begins with
the drafted chain, nodes 0, 1, ..., each below the one before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from paceline.drafters.shared.ngram_pool import Ngram, NgramPool
from paceline.engine.drafter import Outcome
from paceline.engine.tree import EMPTY_TREE, DraftTree

_FEWEST_TOKENS = 2  # of a phrase that the rule "every" adds


@dataclass(slots=True)
class Proposal:
    """What was proposed for one sequence.

    Attributes:
        tree: all of it.
        chain: how many nodes, from the first on, are the drafted chain.
        suffixes: per phrase behind the chain the phrase itself and its nodes, fewer where it was cut.
    """

    tree: DraftTree = EMPTY_TREE
    chain: int = 0
    suffixes: list[tuple[Ngram, list[int]]] = field(default_factory=list)


def context_of(outcome: Outcome, node: int) -> Ngram:
    """Return the two tokens that end with `node` (-1 = root); one where the text has no more."""
    text, tree = outcome.seq.token_ids, outcome.tree
    root = len(text) - len(outcome.new_token_ids) - 1
    if node < 0:
        return tuple(text[max(0, root - 1) : root + 1])
    parent = tree.parents[node]
    return (text[root] if parent < 0 else tree.token_ids[parent], tree.token_ids[node])


def inspirations(outcome: Outcome, chain: int, rule: str, ngram: int) -> Iterator[tuple[Ngram, Ngram]]:
    """Return phrases the target has confirmed beside the accepted text, each with the tokens before it (inspiration).

    A phrase is what the target says after a node, after the child that carries this, and so on, at most N - 1 tokens.

    Args:
        outcome: what the target said about a tree.
        chain: nodes of the drafted chain.
        rule: as in `OuroborosOptions.inspiration`.
        ngram: N.
    """
    if rule == "off":
        return
    if rule == "every":
        child = outcome.tree.edges()
        for node in range(-1, outcome.tree.candidates):
            phrase = _said_after(outcome, node, child, ngram - 1)
            if len(phrase) >= min(_FEWEST_TOKENS, ngram - 1):
                yield context_of(outcome, node), phrase
        return
    tokens, said = outcome.tree.token_ids, outcome.target_argmax  # said[i] stands in the place of node i of the chain
    wrong = next((node for node in range(chain) if tokens[node] != said[node]), chain)
    child = outcome.tree.edges(chain)
    for node in range(wrong + (rule == "paper"), chain):
        if rule == "paper" and tokens[node] != said[node]:
            continue  # the paper wants the key itself confirmed; its code does not, and begins at the wrong token
        phrase = _said_after(outcome, node, child, ngram - 1)
        if len(phrase) == ngram - 1:
            yield context_of(outcome, node), phrase


def _said_after(outcome: Outcome, node: int, child: dict[tuple[int, int], int], length: int) -> Ngram:
    """Return up to `length` tokens that the target says from `node` on, along the tree's edges `child`."""
    phrase = [outcome.target_argmax[node + 1]]
    while len(phrase) < length:
        following = child.get((node, phrase[-1]))
        if following is None:
            break
        node = following
        phrase.append(outcome.target_argmax[node + 1])
    return tuple(phrase)


def refine(pool: NgramPool, outcome: Outcome, proposal: Proposal, ngram: int) -> None:
    """Replace every suffix in the pool by what the target says in its place (refinement); by value, so none is there twice."""
    last = proposal.chain - 1
    context = context_of(outcome, last)
    for phrase, nodes in proposal.suffixes:
        said = tuple(outcome.target_argmax[node + 1] for node in (last, *nodes))[: ngram - 1]
        if len(said) >= len(phrase):  # else too little of it was verified
            for key in {context, context[-1:]}:
                pool.replace(key, phrase, said)
