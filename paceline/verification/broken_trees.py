"""Describe which rules of `Drafter.propose` a drafter's trees break."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from operator import lt

from paceline.core.origin import Origin
from paceline.core.tree import EMPTY_TREE, DraftTree

_INTEGERS = {int}
_ORIGINS = set(Origin) - {Origin.TARGET}


def broken_list(trees: object, num_requests: int) -> str | None:
    """Return a message if a list of trees breaks the rules, otherwise None.

    Args:
        trees: Result of `propose`.
        num_requests: Number of requests.
    """
    if not isinstance(trees, list | tuple) or not all(
        isinstance(tree, DraftTree) for tree in trees
    ):
        return f"proposed {_short(trees)}; expected a list of DraftTrees, one per request."
    if len(trees) != num_requests:
        return f"proposed {len(trees)} trees for {num_requests} requests; expected one per request."
    return None


def broken_tree(tree: DraftTree, max_nodes: int, vocab: int) -> str | None:
    """Return a message about the rule that a tree breaks; None if it breaks no rule.

    The message contains the field `{request}`, which the caller replaces with the request's name.

    Args:
        tree: Proposed tree.
        max_nodes: Maximum number of nodes in the tree.
        vocab: Vocabulary size of the target.
    """
    if tree is EMPTY_TREE:
        return None
    return _broken_type(tree) or _broken_rule(tree, max_nodes, vocab)


def _broken_type(tree: DraftTree) -> str | None:
    for name, values in (("token_ids", tree.token_ids), ("parents", tree.parents)):
        if not isinstance(values, list | tuple) or not _INTEGERS.issuperset(map(type, values)):
            return (
                f"gave {{request}} {name} {_short(values)}; expected a list of Python integers."
                " Call tolist() on arrays."
            )
    for name, optional in (
        ("probs", tree.probs),
        ("confidence", tree.confidence),
        ("origins", tree.origins),
    ):
        if optional is not None and not isinstance(optional, list | tuple):
            return f"gave {{request}} {name} {_short(optional)}; expected a list, or None."
    if tree.origins is not None and not all(map(_ORIGINS.__contains__, tree.origins)):
        return (
            f"gave {{request}} origins {_short(tree.origins)}; each must be a member of"
            " Origin except TARGET."
        )
    return None


def _short(value: object) -> str:
    """Convert a value to short text without braces, for error messages.

    Braces are replaced because `str.format` would treat them as fields.
    """
    return f"{str(value)[:40]!r} ({type(value).__name__})".replace("{", "(").replace("}", ")")


def _broken_rule(tree: DraftTree, max_nodes: int, vocab: int) -> str | None:
    tokens, parents = tree.token_ids, tree.parents
    count = len(tokens)
    if not count and not parents:
        return None
    if len(parents) != count:
        return (
            f"gave {{request}} {count} token_ids and {len(parents)} parents; expected one of"
            " each per node."
        )
    if count > max_nodes:
        return (
            f"proposed {count} nodes for {{request}}; max_nodes was {max_nodes}. Propose fewer, or"
            " reduce its options."
        )
    if not all(map(lt, parents, range(count))) or min(parents) < -1:
        return f"gave {{request}} parents {parents}; each must be -1 (the root) or an earlier node."
    low, high = min(tokens), max(tokens)
    if low < 0 or high >= vocab:
        return f"proposed a token outside 0..{vocab - 1} for {{request}}: {low}..{high}."
    if not 0 <= tree.probes <= count:
        return (
            f"gave {{request}} {count} nodes of which {tree.probes} are probes; expected 0 to"
            f" {count}."
        )
    edges = zip(parents, tokens, strict=True)
    if len(set(islice(edges, tree.num_candidates))) != tree.num_candidates:
        return "gave {request} two siblings with the same token; siblings must differ."
    for name, values in (
        ("probs", tree.probs),
        ("confidence", tree.confidence),
        ("origins", tree.origins),
    ):
        if values is not None and len(values) != count:
            return (
                f"gave {{request}} {len(values)} {name} for {count} nodes; expected one per node,"
                " or None."
            )
    if tree.probs is not None:
        return _broken_draw_rule(tree, tree.probs, vocab)
    return None


def _broken_draw_rule(tree: DraftTree, probs: Sequence[object], vocab: int) -> str | None:
    deterministic: set[int] = set()
    for node, parent in enumerate(tree.parents):
        dist = probs[node]
        if dist is None:
            deterministic.add(parent)
        elif parent in deterministic:
            return (
                "gave {request} a sampled node after a deterministic sibling; put sampled nodes"
                " first."
            )
        elif tuple(getattr(dist, "shape", ())) != (vocab,):
            return (
                f"gave {{request}} probs of shape {tuple(getattr(dist, 'shape', ()))},"
                f" {_short(dist)}; each must be a tensor [{vocab}]."
            )
    return None
