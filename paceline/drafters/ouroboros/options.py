"""Define and validate the options of the `ouroboros` drafter."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import ConfigError, did_you_mean
from paceline.util.config import require_range

INSPIRATIONS = ("every", "paper", "code", "off")
ON_INVALID_FILE = ("refuse", "reset")


@dataclass(frozen=True, slots=True)
class OuroborosOptions:
    """Options of `ouroboros`, which drafts phrases with a small model.

    Attributes:
        gamma: Minimum number of tokens drafted per step; at least 1, default 5. The last phrase of
            a draft is not truncated, so the draft can be longer than gamma.
        window: W, number of columns in the draft model's lookahead window; at least 1, default 2.
        ngram: N, number of tokens in a phrase, including its key; at least 2, default 6.
        suffixes: K, maximum number of phrases that continue the draft; default 3. Unless
            max_branches=0, the tree also contains up to K phrases that follow the newest token, as
            alternatives to the draft.
        max_branches: Maximum number of the draft model's alternatives to verify alongside the
            draft; default 4. With max_branches=0, the tree has no alternatives, as in the paper.
        inspiration: Nodes whose predictions are added to the pool. "every" uses the target's
            predictions at all nodes, "paper" follows the rule in the paper, "code" follows the rule
            in the authors' code, and "off" uses none. Defaults to "every".
        refinement: Replace verified suffixes in the pool with the target's predictions; default
            true.
        budget: Verify only the nodes that are expected to save time; default true.
        shared_pool: Share one phrase pool among all requests of this drafter; default false.
        pool_file: File in which the shared pool is saved between runs. If the file exists, the
            drafter loads it. This option implies `shared_pool`. By default, the pool is not saved.
        on_invalid_file: Action if the pool file is damaged or invalid: "refuse" raises an error,
            and "reset" starts an empty pool with a warning. Defaults to "refuse".
    """

    gamma: int = 5
    window: int = 2
    ngram: int = 6
    suffixes: int = 3
    max_branches: int = 4
    inspiration: str = "every"
    refinement: bool = True
    budget: bool = True
    shared_pool: bool = False
    pool_file: str | None = None
    on_invalid_file: str = "refuse"

    def __post_init__(self) -> None:
        lower_bounds = {"gamma": 1, "window": 1, "ngram": 2, "suffixes": 0, "max_branches": 0}
        for name, lower_bound in lower_bounds.items():
            require_range("ouroboros", name, getattr(self, name), lower_bound)
        choices = {"inspiration": INSPIRATIONS, "on_invalid_file": ON_INVALID_FILE}
        for name, allowed in choices.items():
            value = getattr(self, name)
            if value not in allowed:
                hint = did_you_mean(value, allowed)
                raise ConfigError(f"ouroboros: got {name}={value!r}; expected a known value.{hint}")
