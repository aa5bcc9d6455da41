"""Update the pool from the target's predictions (Zhao et al. 2024, section 2.5).

Ouroboros drafts phrases from a pool. Two methods update the pool after each step: inspiration adds
phrases that the target predicts, and refinement corrects phrases that the draft tree contains. Both
methods depend only on the outcome of the step. The option inspiration=every uses the predictions at
all nodes; the paper does not describe this option.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.core.drafter import Outcome
from paceline.drafters.ouroboros.proposal import Proposal
from paceline.drafters.ouroboros.settings import MIN_PHRASE
from paceline.drafters.shared.ngram_pool import Ngram, NgramPool


def context_of(outcome: Outcome, node: int) -> Ngram:
    """Return the token before `node` and the token at `node`, for use as a pool key.

    At the start of the text, the result has only one token. Node -1 is the root.
    """
    text, tree = outcome.request.token_ids, outcome.tree
    root = len(text) - len(outcome.new_token_ids) - 1
    if node < 0:
        return tuple(text[max(0, root - 1) : root + 1])
    parent = tree.parents[node]
    return (text[root] if parent < 0 else tree.token_ids[parent], tree.token_ids[node])


def inspirations(
    outcome: Outcome, chain: Sequence[int], rule: str, ngram: int
) -> Iterator[tuple[Ngram, Ngram]]:
    """Yield phrases that the target predicts after draft nodes, with their contexts.

    The paper (Zhao et al. 2024) calls this method inspiration. A phrase starts with the target's
    prediction after a node. If a child of the node has the predicted token, the phrase continues
    with the target's prediction after that child, and so on, up to N - 1 tokens.

    For example, the target predicts 5 after a node. The node has a child with the token 5, after
    which the target predicts 8. This child has no child with the token 8, so the phrase is (5, 8).

    The context of a phrase consists of the tokens before the phrase (`context_of`).

    Args:
        outcome: Result of verifying a draft tree.
        chain: Nodes in the drafted chain that the engine verified.
        rule: Value of `OuroborosOptions.inspiration`.
        ngram: N; a phrase has at most N - 1 tokens.
    """
    if rule == "off":
        return
    if rule == "every":
        child = outcome.tree.edges()
        for node in range(-1, outcome.tree.num_candidates):
            phrase = _predicted_after(outcome, node, child, ngram - 1)
            if len(phrase) >= min(MIN_PHRASE, ngram - 1):
                yield context_of(outcome, node), phrase
        return
    tree = outcome.tree
    right = [
        tree.token_ids[node] == outcome.target_argmax[tree.parents[node] + 1] for node in chain
    ]
    wrong = right.index(False) if False in right else len(chain)
    child = {(tree.parents[node], tree.token_ids[node]): node for node in chain}
    for index in range(wrong + (rule == "paper"), len(chain)):
        node = chain[index]
        if rule == "paper" and not right[index]:
            # The paper requires that the key itself be confirmed. Its code does not check this and
            # starts at the wrong token.
            continue
        phrase = _predicted_after(outcome, node, child, ngram - 1)
        if len(phrase) == ngram - 1:
            yield context_of(outcome, node), phrase


def _predicted_after(
    outcome: Outcome, node: int, child: dict[tuple[int, int], int], length: int
) -> Ngram:
    """Return up to `length` tokens that the target predicts after `node`.

    Args:
        outcome: Result of verifying a draft tree.
        node: Node after which the phrase starts; -1 is the root.
        child: Child node by (parent node, token). The phrase ends at a node that has no child with
            the predicted token.
        length: Maximum length of the phrase, in tokens.
    """
    phrase = [outcome.target_argmax[node + 1]]
    while len(phrase) < length:
        following = child.get((node, phrase[-1]))
        if following is None:
            break
        node = following
        phrase.append(outcome.target_argmax[node + 1])
    return tuple(phrase)


def refine(pool: NgramPool, outcome: Outcome, proposal: Proposal, ngram: int) -> None:
    """Replace drafted phrases in the pool with the phrases that the target predicts.

    The paper (Zhao et al. 2024) calls this method refinement. For example, the tree contains the
    phrase 5 6 7 after the chain. The target predicts 5 after the chain, 9 after the 5, and 8 after
    the 6. Refinement then replaces the phrase 5 6 7 with 5 9 8.

    A phrase is replaced only if the target predicted a token at each of its positions. If the pool
    already contains the predicted phrase, refinement only removes the drafted phrase.

    Args:
        pool: Pool to update.
        outcome: Result of verifying the proposal's tree.
        proposal: Proposal whose suffixes come from the pool.
        ngram: N; a phrase has at most N - 1 tokens.
    """
    last = proposal.chain[-1] if proposal.chain else -1
    num_processed = len(outcome.tree)
    if last >= num_processed:
        return
    context = context_of(outcome, last)
    for phrase, nodes in proposal.suffixes:
        processed = [node for node in (last, *nodes) if node < num_processed]
        predicted = tuple(outcome.target_argmax[node + 1] for node in processed)[: ngram - 1]
        if len(predicted) >= len(phrase):  # otherwise, too little of the suffix was verified
            for key in {context, context[-1:]}:
                pool.replace(key, phrase, predicted)
