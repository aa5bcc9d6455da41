"""Which foresight a model has: the trained one that was named, that of the package, or else a
map that is fitted.
"""

from __future__ import annotations

from pathlib import Path

from paceline import demo
from paceline.core.drafter import Drafter
from paceline.draft_head.fitting import fitted
from paceline.draft_head.guessing import DraftHead
from paceline.draft_head.trained import card_of, load
from paceline.draft_head.weights import Weights, readable_ends
from paceline.errors import ConfigError
from paceline.model.cached_lm import CachedLM
from paceline.model.settings import MIN_SKETCH_COSINE


class DraftHeads:
    """Those that the drafters of one engine ask for, each found when it is first needed.

    Args:
        model: the target.
    """

    def __init__(self, model: CachedLM) -> None:
        self._model = model
        self._found: dict[str | None, DraftHead | None] = {}  # by the file

    def check(self, drafter: Drafter) -> None:
        """Refuse a drafter whose file cannot be used.

        Raises:
            ConfigError: it cannot be read, or is of another model.
        """
        if drafter.draft_head is not None:
            self._find(drafter.draft_head)

    def of(self, drafter: Drafter) -> DraftHead | None:
        """Return what a drafter asks for; None where there is none to be had."""
        return self._find(drafter.draft_head)

    def _find(self, file: str | None) -> DraftHead | None:
        if file not in self._found:
            self._found[file] = find_draft_head(self._model, file)
        return self._found[file]


def find_draft_head(model: CachedLM, file: str | Path | None = None) -> DraftHead | None:
    """Return that of a model: of the file, if one is named; else the trained one of the package, or
    one that is fitted.

    Returns:
        None where the model's states or embeddings are not to be had, or it is too slow for the
        fit.
    Raises:
        ConfigError: a file that cannot be used.
    """
    if not readable_ends(model):
        if file is not None:
            raise ConfigError(
                f"draft head {str(file)!r}: got {model.architecture.name}, whose embeddings cannot"
                " be read; expected a model with an embedding and an LM head of plain weights."
                " Leave the option out."
            )
        return None
    weights = load(file, model) if file is not None else _shipped(model) or fitted(model)
    return None if weights is None else DraftHead(model, weights)


def _shipped(model: CachedLM) -> Weights | None:
    near = {path: card_of(path).closeness(model) for path in demo.DRAFT_HEADS}
    best = max(near, key=lambda path: near[path], default=None)
    return None if best is None or near[best] < MIN_SKETCH_COSINE else load(best, model)
