"""Find drafter classes by name or by `module:Class`.

A drafter class defines a name, a frozen dataclass `Options`, and a class method `build`. Its class
attributes declare requirements, such as `needs_draft_model`. `_OWN` contains one entry for each
drafter in this package. The entry repeats the drafter's requirements, so that drafters can be
listed without loading model code. Other packages declare drafters in the entry point group
`paceline.drafters`. The registry imports a drafter's module only when the drafter is chosen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from typing import Any

from paceline.errors import ConfigError, did_you_mean
from paceline.util.garbage_collection import collection_paused

GROUP = "paceline.drafters"
PLAIN = "none"  # the drafter of plain decoding
# Module with the options of drafters that consist of a single file.
_OF_FILES = "paceline.drafters.shared.file_options"


@dataclass(frozen=True, slots=True)
class DrafterEntry:
    """The location of a drafter's class, with a one-line summary.

    Attributes:
        name: Name used in drafter specs.
        target: Location of the class, as "module:Class".
        summary: One-line description for lists of drafters; empty to use the class docstring.
        source: Package that declares the drafter, for messages; empty if the user passed
            `module:Class`.
        light: Location of the options class, as "module:Class", in a module that imports neither
            torch nor numba; empty to use the drafter class's `Options`.
        needs: Requirements: "draft_model", "draft_model_if_given", "trained" or "datastore"; None
            to use the drafter class's attributes.
    """

    name: str
    target: str
    summary: str = ""
    source: str = ""
    light: str = ""
    needs: frozenset[str] | None = None

    def load(self) -> Any:
        """Import and return the drafter class.

        Raises:
            ConfigError: The module cannot be imported, or the class is not a drafter.
        """
        try:
            drafter_class = _imported(self.target)
        except Exception as error:  # a third-party module may raise anything while it is imported
            raise ConfigError(
                self._refusal(f"which cannot be imported ({type(error).__name__}: {error})")
            ) from error
        missing = _missing(drafter_class)
        if missing:
            raise ConfigError(self._refusal(missing))
        return drafter_class

    def describe(self) -> str:
        """Return the one-line description of the drafter.

        If no description is registered, the class is imported and its docstring is used.
        """
        return self.summary or (self.load().__doc__ or "").strip().partition("\n")[0]

    def options(self) -> Any:
        """Return the drafter's options class, which is a dataclass.

        Raises:
            ConfigError: The module cannot be imported, or the class is not a drafter.
        """
        return _imported(self.light) if self.light else self.load().Options

    @property
    def needs_draft_model(self) -> bool:
        """Return whether the drafter requires a draft model.

        If no requirements are registered, the drafter class is imported to find out.
        """
        return (
            bool(self.load().needs_draft_model)
            if self.needs is None
            else "draft_model" in self.needs
        )

    @property
    def takes_draft_model(self) -> bool:
        """Return whether the drafter uses a draft model if one is given."""
        if self.needs is None:
            return self.needs_draft_model or bool(self.load().takes_draft_model)
        return not self.needs.isdisjoint(("draft_model", "draft_model_if_given"))

    @property
    def needs_trained(self) -> bool:
        """Return whether the drafter reads a file that was trained for the models in use."""
        return bool(self.load().needs_trained) if self.needs is None else "trained" in self.needs

    @property
    def needs_store(self) -> bool:
        """Return whether the drafter requires the `datastore` option."""
        return bool(self.load().needs_store) if self.needs is None else "datastore" in self.needs

    def _refusal(self, fault: str) -> str:
        origin = f" of {self.source}" if self.source else ""
        return (
            f"drafter {self.name!r}: got {self.target!r}{origin}, {fault}; expected 'module:Class'"
            " of an importable subclass of paceline.Drafter with propose, a dataclass Options and"
            f" a class method build. Correct it, or choose another of: {', '.join(available())}."
        )


def _imported(target: str) -> Any:
    module, _, attribute = target.partition(":")
    with collection_paused():
        return reduce(getattr, attribute.split("."), import_module(module))


def _missing(drafter_class: Any) -> str | None:
    """Return what a class lacks to be a drafter, or None if it is a valid drafter."""
    from paceline.core.drafter import Drafter  # imports numpy, which is not needed for lists

    if not isinstance(drafter_class, type) or not issubclass(drafter_class, Drafter):
        return "which is not a subclass of paceline.Drafter"
    if drafter_class.propose is Drafter.propose:
        return "which does not define propose"
    options = getattr(drafter_class, "Options", None)
    if not isinstance(options, type) or not dataclasses.is_dataclass(options):
        return "which has no dataclass named Options"
    return (
        None
        if callable(getattr(drafter_class, "build", None))
        else "which has no class method build"
    )


def _own(name: str, target: str, options: str, summary: str, needs: str = "") -> DrafterEntry:
    inside = f"paceline.drafters.{name}"
    light = f"{_OF_FILES if target.startswith(':') else inside}{options}"
    return DrafterEntry(
        name, f"{inside}{target}", summary, "paceline", light, frozenset(needs.split())
    )


_OWN = (
    _own(PLAIN, ":NoDrafter", ":NoOptions", "plain decoding: every draft tree is empty"),
    _own(
        "prompt_lookup",
        ":PromptLookup",
        ":PromptLookupOptions",
        "continuations of earlier occurrences of the newest n-gram, and frequent tokens",
    ),
    _own(
        "draft_model",
        ".other_tokenizer:OtherTokenizerDrafter",
        ".options:DraftModelOptions",
        "a small model drafts a tree, or a chain of a fixed length",
        "draft_model",
    ),
    _own(
        "specdec_pp",
        ".drafter:SpecDecPP",
        ".options:SpecDecPPOptions",
        "a small model drafts until a trained head expects a rejection",
        "draft_model trained",
    ),
    _own(
        "state_head",
        ".drafter:StateHeadDrafter",
        ".options:StateHeadOptions",
        "a published head (EAGLE-3, DFlash or MTP) drafts from the target's hidden states",
        "trained",
    ),
    _own(
        "ouroboros",
        ".drafter:Ouroboros",
        ".options:OuroborosOptions",
        "a small model drafts phrases from a pool; the target's predictions update the pool",
        "draft_model",
    ),
    _own(
        "sssd",
        ".drafter:Sssd",
        ".options:SssdOptions",
        "continuations found in the request, in earlier answers and in a datastore",
    ),
    _own(
        "jacobi",
        ":Jacobi",
        ":JacobiOptions",
        "the target refines a guess of the rest of the answer, or only of the next block",
    ),
    _own(
        "lookahead",
        ".drafter:Lookahead",
        ".options:LookaheadOptions",
        "the target generates n-grams in a window and verifies them in later steps",
    ),
    _own(
        "token_recycling",
        ".drafter:TokenRecycling",
        ".options:TokenRecyclingOptions",
        "tokens that the target predicted after the same context in earlier steps",
    ),
    _own(
        "auto",
        ".drafter:Auto",
        ".options:AutoOptions",
        "a draft tree with tokens from retrieval, from the target's predictions and hidden state,"
        " and from a draft model if there is one",
        "draft_model_if_given",
    ),
    _own(
        "rest",
        ".drafter:Rest",
        ".options:RestOptions",
        "the most frequent continuations of the newest tokens, found in a datastore",
        "datastore",
    ),
    _own(
        "pia",
        ".drafter:Pia",
        ".options:PiaOptions",
        "phrases from the prompt and all earlier outputs, stored in tries",
    ),
)
REGISTRY: dict[str, DrafterEntry] = {registered.name: registered for registered in _OWN}


def available() -> list[str]:
    """Return the names that `create` accepts, built-in drafters first."""
    return [*REGISTRY, *sorted({installed.name for installed in _installed()} - REGISTRY.keys())]


def entry(name: str) -> DrafterEntry:
    """Find a drafter by its name, or by "module:Class".

    Built-in names take precedence over names from other packages.

    Raises:
        ConfigError: The drafter is unknown (the message suggests a close match), or two packages
            declare it.
    """
    if name in REGISTRY:
        return REGISTRY[name]
    installed = {point.target: point for point in _installed() if point.name == name}
    if len(installed) > 1:
        declared = " and ".join(
            f"{point.target!r} of {point.source}" for point in installed.values()
        )
        raise ConfigError(
            f"drafter {name!r}: got {declared}; expected one package to declare it. Name yours as"
            " 'module:Class'."
        )
    if installed:
        return next(iter(installed.values()))
    first, colon, second = name.partition(":")
    if colon and first in available():
        raise ConfigError(
            f"drafter {first!r}: got {second!r} for its options; expected options as key=value."
            " Write key=value, or leave it out."
        )
    if colon:
        return DrafterEntry(name, name)
    raise ConfigError(
        f"there is no drafter {name!r}; expected a name or"
        f" 'module:Class'.{did_you_mean(name, available())}"
    )


def _installed() -> Iterator[DrafterEntry]:
    """Yield the drafters that installed packages declare, without importing them."""
    from importlib.metadata import entry_points  # slow to import, and rarely needed

    for point in entry_points(group=GROUP):
        package = point.dist.name if point.dist is not None else "an unnamed package"
        yield DrafterEntry(point.name, point.value, source=f"package {package}")
