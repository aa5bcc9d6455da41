"""How many draft tokens were verified and accepted, by where they came from."""

from __future__ import annotations

from collections import Counter

from paceline.core.drafter import Outcome
from paceline.core.origin import Origin


class Tally:
    """Counts over all answers of a server.

    Attributes:
        drafted, accepted: draft tokens verified, and kept, by origin; of answers, `said` counts all
            tokens.
    """

    def __init__(self) -> None:
        self.drafted: Counter[int] = Counter()
        self.accepted: Counter[int] = Counter()
        self.said = 0

    def add(self, outcome: Outcome) -> None:
        """Count a step."""
        tree, kept = outcome.tree, outcome.accepted[: len(outcome.new_token_ids)]
        origins = [Origin.DRAFT] * len(tree) if tree.origins is None else tree.origins
        self.said += len(outcome.new_token_ids)
        self.drafted.update(origins)
        self.accepted.update(origins[node] for node in kept)

    def rows(self) -> list[dict[str, int | str]]:
        """The counts by origin, of those that have any; of the target: the tokens it chose
        itself.
        """
        target = self.said - sum(self.accepted.values())
        rows: list[dict[str, int | str]] = [
            {"origin": Origin.TARGET.word, "drafted": 0, "accepted": target}
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
