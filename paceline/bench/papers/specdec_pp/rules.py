"""The rules for the length of drafts that the SpecDec++ paper compares (Huang et al. 2024,
sections 2.1 and 4).
"""

from __future__ import annotations

from collections.abc import Sequence

LENGTHS = (2, 3, 4, 5, 6, 8, 10, 12, 14)  # K of figure 4; the paper has the even ones
THRESHOLDS = (
    0.05,
    0.1,
    0.2,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.9,
    0.95,
)  # h of the first head in figure 4
PAPER_THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9)  # of further heads, and of what is timed
_MOST = 20  # tokens that the head may draft, and so may the other rules
_BOUNDS = {
    "product": (0.1, 0.3, 0.5, 0.7, 0.9),
    "confidence": (0.2, 0.4, 0.6, 0.8, 0.9),
    "entropy": (0.3, 0.4, 0.5, 0.6, 0.8),
}
FIXED, HEURISTIC, HEAD = "fixed K", "heuristic", "SpecDec++"
PUBLISHED, FROM_ONE = "SpecDec++, published rule", "SpecDec++, min 1"
_VARIANTS = {
    PUBLISHED: "count_undecided=false",
    FROM_ONE: "min_draft_tokens=1",
}  # what they change in the drafter
ORACLE, AUTO = "oracle", "auto"


def fixed_length(length: int) -> str:
    """Return the drafter that drafts exactly so many tokens."""
    return f"draft_model:max_draft_tokens={length}"


def head_spec(heads: Sequence[str], threshold: float | str) -> str:
    """Return SpecDec++ with the first of the heads (none came: the one that is shipped) and a
    threshold.
    """
    return (
        f"specdec_pp:head={heads[0]},threshold={threshold}"
        if heads
        else f"specdec_pp:threshold={threshold}"
    )


def families(heads: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the rules of figure 4, per name the method by label: fixed lengths, the draft's own
    probabilities, and heads.

    Beside the first head as it is by default stand the rule as published, which knows nothing of
    the newest token, and one that may draft a single token.
    """
    found = {
        FIXED: {f"K = {length}": fixed_length(length) for length in LENGTHS},
        HEURISTIC: {HEURISTIC: "draft_model:stop_rule=heuristic"},
    }
    for rule, bounds in _BOUNDS.items():
        found[rule] = {
            f"{rule} {bound}": f"{fixed_length(_MOST)},stop_rule={rule},stop_threshold={bound}"
            for bound in bounds
        }
    found[HEAD] = {f"h = {threshold}": head_spec(heads, threshold) for threshold in THRESHOLDS}
    for name, change in _VARIANTS.items():
        found[name] = {
            f"{change}, h = {one}": f"{head_spec(heads, one)},{change}" for one in PAPER_THRESHOLDS
        }
    for place, head in enumerate(heads[1:], 1):
        found[head_label(head)] = {
            f"{head_label(head)}, h = {one}": head_spec(heads[place:], one)
            for one in PAPER_THRESHOLDS
        }
    return found


def methods_of(heads: Sequence[str]) -> dict[str, str]:
    """Return what tables call each method."""
    named = {
        method: label for methods in families(heads).values() for label, method in methods.items()
    }
    return {**named, head_spec(heads, AUTO): AUTO}


def head_label(folder: str) -> str:
    """Return what a further head is called."""
    return f"head {folder}"


def rivals(heads: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the methods of table 1: fixed lengths, and the first head with the paper's
    thresholds.
    """
    return list(map(fixed_length, LENGTHS)), [
        head_spec(heads, threshold) for threshold in PAPER_THRESHOLDS
    ]
