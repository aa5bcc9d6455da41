"""Load a model's draft head from a file or from the package, or fit one."""

from __future__ import annotations

from pathlib import Path

from paceline import demo
from paceline.core.drafter import Drafter
from paceline.draft_head.fitting import Portions, finished, fit_in_portions, fitted_weights
from paceline.draft_head.guessing import DraftHead
from paceline.draft_head.trained import card_of, load
from paceline.draft_head.weights import Weights, has_plain_embeddings
from paceline.errors import ConfigError
from paceline.model.cached_lm import CachedLM
from paceline.model.settings import MIN_SKETCH_COSINE


class DraftHeads:
    """Loads or fits the draft heads of one engine when a drafter first needs them.

    On a GPU, the fit runs in portions between the steps of the engine, so that no answer waits for
    the whole fit. On a CPU, a portion takes much longer than a step, so the fit runs without a
    pause.

    Args:
        model: Target model.
    """

    def __init__(self, model: CachedLM) -> None:
        self._model = model
        # Looking up a model's device in every step would take too long.
        self._fits_in_portions = model.device.type == "cuda"
        self._heads: dict[str | None, DraftHead | None] = {}  # by file
        self._portions: Portions[DraftHead | None] | None = None  # remaining portions of the fit
        self._step = -1  # step in which the last portion ran

    def check(self, drafter: Drafter) -> None:
        """Load the file with a drafter's draft head, if the drafter specifies one.

        Raises:
            ConfigError: The file cannot be read, or belongs to a different model.
        """
        if drafter.draft_head is not None:
            self._find(drafter.draft_head)

    def of(self, drafter: Drafter, step: int) -> DraftHead | None:
        """Return a drafter's draft head, or None if it is not available or not yet fitted.

        While the head is being fitted in portions, the first call in each step runs one portion.

        Args:
            drafter: Drafter that uses a draft head.
            step: Number of the engine's current step.
        """
        file = drafter.draft_head
        if file is None and self._fits_in_portions:
            if step != self._step:
                self._step = step
                self._run_portion()
            return self._heads.get(file)
        return self._find(file)

    def finish(self, drafter: Drafter) -> None:
        """Load a drafter's draft head, or complete its fit before returning."""
        if drafter.num_head_tokens():
            if drafter.draft_head is None and self._portions is not None:
                portions, self._portions = self._portions, None
                self._heads[None] = finished(portions)
            self._find(drafter.draft_head)

    def _run_portion(self) -> None:
        """Run the next portion of the default head's fit, unless the fit is complete.

        Drafters that specify no file use the default head.
        """
        if None in self._heads:
            return
        portions = self._portions or _search(self._model, None, in_portions=True)
        self._portions = None  # after an error, the fit starts again
        try:
            next(portions)
        except StopIteration as end:
            self._heads[None] = end.value
        else:
            self._portions = portions

    def _find(self, file: str | None) -> DraftHead | None:
        if file not in self._heads:
            self._heads[file] = find_draft_head(self._model, file)
        return self._heads[file]


def find_draft_head(model: CachedLM, file: str | Path | None = None) -> DraftHead | None:
    """Load or fit the draft head for a model.

    Args:
        model: Target model.
        file: File with a trained draft head. Default: the head for this model that ships with
            paceline. If there is none, the function fits one.
    Returns:
        The draft head. None if the model's hidden states or embeddings cannot be read, or if the
        model is too slow to fit a head.
    Raises:
        ConfigError: The file cannot be read, or belongs to a different model.
    """
    return finished(_search(model, file, in_portions=False))


def _search(
    model: CachedLM, file: str | Path | None, in_portions: bool
) -> Portions[DraftHead | None]:
    """Find a draft head as in `find_draft_head`, yielding between portions of the fit.

    If `in_portions` is False, the generator returns without yielding.
    """
    if not has_plain_embeddings(model):
        if file is not None:
            raise ConfigError(
                f"draft head {str(file)!r}: got {model.architecture.name}, whose embeddings cannot"
                " be read; expected a model with an embedding and an LM head of plain weights."
                " Leave the option out."
            )
        return None
    weights = _packaged(model) if file is None else load(file, model)
    if weights is None:
        weights = (yield from fit_in_portions(model)) if in_portions else fitted_weights(model)
    return None if weights is None else DraftHead(model, weights)


def _packaged(model: CachedLM) -> Weights | None:
    cosines = {path: card_of(path).closeness(model) for path in demo.DRAFT_HEADS}
    best = max(cosines, key=lambda path: cosines[path], default=None)
    return None if best is None or cosines[best] < MIN_SKETCH_COSINE else load(best, model)
