"""Count verified and accepted draft tokens by their source."""

from __future__ import annotations

from collections import Counter

from paceline.core.drafter import Outcome
from paceline.core.origin import Origin


class Tally:
    """Counts the draft tokens of all answers that a server generates.

    Attributes:
        drafted: Number of verified draft tokens by source.
        accepted: Number of accepted draft tokens by source.
        num_tokens: Number of generated tokens in all answers.
    """

    def __init__(self) -> None:
        self.drafted: Counter[int] = Counter()
        self.accepted: Counter[int] = Counter()
        self.num_tokens = 0

    def add(self, outcome: Outcome) -> None:
        """Add the draft tokens and the new tokens of one step to the counts."""
        tree, accepted = outcome.tree, outcome.accepted[: len(outcome.new_token_ids)]
        origins = [Origin.DRAFT] * len(tree) if tree.origins is None else tree.origins
        self.num_tokens += len(outcome.new_token_ids)
        self.drafted.update(origins)
        self.accepted.update(origins[node] for node in accepted)

    def rows(self) -> list[dict[str, int | str]]:
        """Return the non-zero counts per source; the target itself is also a source."""
        target_tokens = self.num_tokens - sum(self.accepted.values())
        rows: list[dict[str, int | str]] = [
            {"origin": Origin.TARGET.word, "drafted": 0, "accepted": target_tokens}
        ]
        for origin in Origin:
            if self.drafted[origin]:
                rows.append(
                    {
                        "origin": origin.word,
                        "drafted": self.drafted[origin],
                        "accepted": self.accepted[origin],
                    }
                )
        return rows
