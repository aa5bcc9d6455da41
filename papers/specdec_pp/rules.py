"""Define the drafter specs of the length rules that the SpecDec++ paper compares.

See Huang et al. 2024, sections 2.1 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence

from papers.specdec_pp.run_settings import (
    LENGTHS,
    MAX_DRAFT_TOKENS,
    PAPER_THRESHOLDS,
    STOP_BOUNDS,
    THRESHOLDS,
)

FIXED, HEURISTIC, HEAD = "fixed K", "heuristic", "SpecDec++"
PUBLISHED, FROM_ONE = "SpecDec++, published rule", "SpecDec++, min 1"
# changed drafter options
_VARIANTS = {PUBLISHED: "count_undecided=false", FROM_ONE: "min_draft_tokens=1"}
ORACLE, AUTO = "oracle", "auto"


def fixed_length(length: int) -> str:
    """Return the drafter that drafts exactly `length` tokens."""
    return f"draft_model:max_draft_tokens={length}"


def head_spec(heads: Sequence[str], threshold: float | str) -> str:
    """Return the SpecDec++ spec with a threshold, and the first or the built-in head."""
    return (
        f"specdec_pp:head={heads[0]},threshold={threshold}"
        if heads
        else f"specdec_pp:threshold={threshold}"
    )


def families(heads: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the rules in figure 4: for each rule, its methods by label.

    Rules use a fixed length, the draft model's probabilities, or a head. The first head appears
    with its default rule, with the published rule, which ignores the newest token, and with a rule
    that allows a single draft token.
    """
    rules = {
        FIXED: {f"K = {length}": fixed_length(length) for length in LENGTHS},
        HEURISTIC: {HEURISTIC: "draft_model:stop_rule=heuristic"},
    }
    for rule, bounds in STOP_BOUNDS.items():
        spec = f"{fixed_length(MAX_DRAFT_TOKENS)},stop_rule={rule},stop_threshold="
        rules[rule] = {f"{rule} {bound}": f"{spec}{bound}" for bound in bounds}
    rules[HEAD] = {f"h = {threshold}": head_spec(heads, threshold) for threshold in THRESHOLDS}
    for name, change in _VARIANTS.items():
        rules[name] = {
            f"{change}, h = {threshold}": f"{head_spec(heads, threshold)},{change}"
            for threshold in PAPER_THRESHOLDS
        }
    for index, head in enumerate(heads[1:], 1):
        rules[head_label(head)] = {
            f"{head_label(head)}, h = {threshold}": head_spec(heads[index:], threshold)
            for threshold in PAPER_THRESHOLDS
        }
    return rules


def methods_of(heads: Sequence[str]) -> dict[str, str]:
    """Return the label of each method in tables."""
    named = {
        method: label for methods in families(heads).values() for label, method in methods.items()
    }
    return {**named, head_spec(heads, AUTO): AUTO}


def head_label(folder: str) -> str:
    """Return the label of a head after the first one."""
    return f"head {folder}"


def rivals(heads: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the methods of table 1: fixed lengths, and the first head's thresholds."""
    return list(map(fixed_length, LENGTHS)), [
        head_spec(heads, threshold) for threshold in PAPER_THRESHOLDS
    ]
