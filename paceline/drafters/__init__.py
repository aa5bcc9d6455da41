"""The registry of drafters: this package's own, those of other packages (entry points), and any
`module:Class`.

A drafter class names itself, says what it needs (`needs_draft_model` ... of `Drafter`), holds a
frozen dataclass `Options` and is built by `Class.build(options)`, or `Class.build(options,
draft_model)` where it needs one, or takes one and there is one. One of this package is a file and a
line below, which repeats what it needs, so that lists load no model code; another package declares
its own in the entry point group `paceline.drafters`. No drafter's module is imported before the
drafter is chosen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from typing import TYPE_CHECKING, Any

from paceline.errors import ConfigError, did_you_mean
from paceline.util.config import build_options, parse_spec

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from transformers import PreTrainedModel

    from paceline.core.drafter import Drafter
    from paceline.model.cached_lm import CachedLM

GROUP = "paceline.drafters"
PLAIN = "none"  # the drafter of plain decoding
_OF_FILES = "paceline.drafters.shared.file_options"  # the options of those that are a file


@dataclass(frozen=True, slots=True)
class DrafterEntry:
    """Where the class of a drafter is found, and one line about it.

    Attributes:
        target: "module:Class".
        summary: what it does, for lists; empty where only the class can tell.
        source: the package that declares it, for messages; empty for `module:Class` as the user
            wrote it.
        light: "module:Class" of its options, which can be imported without torch or a compiler;
            empty: as `target` has them.
        needs: what it is built with, out of "draft_model", "draft_model_if_given", "trained" and
            "datastore"; None: only the class can tell.
    """

    name: str
    target: str
    summary: str = ""
    source: str = ""
    light: str = ""
    needs: frozenset[str] | None = None

    def load(self) -> Any:
        """Import and return its class.

        Raises:
            ConfigError: the module cannot be imported, or what it holds there is no drafter that
                can be built.
        """
        try:
            found = _imported(self.target)
        except Exception as error:  # whatever a foreign module does while it is imported
            raise ConfigError(
                self._refusal(f"which cannot be imported ({type(error).__name__}: {error})")
            ) from error
        missing = _missing(found)
        if missing:
            raise ConfigError(self._refusal(missing))
        return found

    def describe(self) -> str:
        """Return what it does, in one line; loads the class where no summary is registered."""
        return self.summary or (self.load().__doc__ or "").strip().partition("\n")[0]

    def options(self) -> Any:
        """Return the dataclass of its options.

        Raises:
            ConfigError: as `load`.
        """
        return _imported(self.light) if self.light else self.load().Options

    @property
    def needs_draft_model(self) -> bool:
        """Whether it is built with a draft model; loads the class where nothing is registered,
        as those below do.
        """
        return (
            bool(self.load().needs_draft_model)
            if self.needs is None
            else "draft_model" in self.needs
        )

    @property
    def takes_draft_model(self) -> bool:
        """Whether it is built with a draft model where there is one; all that need one do."""
        if self.needs is None:
            return self.needs_draft_model or bool(self.load().takes_draft_model)
        return not self.needs.isdisjoint(("draft_model", "draft_model_if_given"))

    @property
    def needs_trained(self) -> bool:
        """Whether it reads a file trained for the models at hand."""
        return bool(self.load().needs_trained) if self.needs is None else "trained" in self.needs

    @property
    def needs_store(self) -> bool:
        """Whether its option `datastore` must be given."""
        return bool(self.load().needs_store) if self.needs is None else "datastore" in self.needs

    def _refusal(self, fault: str) -> str:
        origin = f" of {self.source}" if self.source else ""
        return (
            f"drafter {self.name!r}: got {self.target!r}{origin}, {fault}; expected 'module:Class'"
            " of an importable subclass of"
            " paceline.Drafter with propose, a dataclass Options and a class method build."
            " Correct it, or choose another of:"
            f" {', '.join(available())}."
        )


def _imported(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return reduce(getattr, attribute.split("."), import_module(module))


def _missing(found: Any) -> str | None:
    """What `found` lacks to be a drafter that can be built from its options."""
    from paceline.core.drafter import (
        Drafter,
    )  # it brings numpy along, and the names alone need none

    if not isinstance(found, type) or not issubclass(found, Drafter):
        return "which is no subclass of paceline.Drafter"
    if found.propose is Drafter.propose:
        return "which does not define propose"
    options = getattr(found, "Options", None)
    if not isinstance(options, type) or not dataclasses.is_dataclass(options):
        return "which has no dataclass named Options"
    return None if callable(getattr(found, "build", None)) else "which has no class method build"


def _own(name: str, target: str, options: str, summary: str, needs: str = "") -> DrafterEntry:
    inside = f"paceline.drafters.{name}"
    light = f"{_OF_FILES if target.startswith(':') else inside}{options}"
    return DrafterEntry(
        name, f"{inside}{target}", summary, "paceline", light, frozenset(needs.split())
    )


_OWN = (
    _own(PLAIN, ":NoDrafter", ":NoOptions", "plain decoding: empty trees"),
    _own(
        "prompt_lookup",
        ":PromptLookup",
        ":PromptLookupOptions",
        "continuations of earlier matches of the newest n-gram, and frequent tokens",
    ),
    _own(
        "draft_model",
        ".drafter:DraftModel",
        ".options:DraftModelOptions",
        "a small model drafts a tree, or a chain of fixed length",
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
        "ouroboros",
        ".drafter:Ouroboros",
        ".options:OuroborosOptions",
        "a small model drafts phrase by phrase; the target teaches the phrases",
        "draft_model",
    ),
    _own(
        "sssd",
        ".drafter:Sssd",
        ".options:SssdOptions",
        "what followed the newest tokens in the request, earlier answers and a datastore, by its"
        " chance",
    ),
    _own(
        "jacobi",
        ":Jacobi",
        ":JacobiOptions",
        "guesses the whole rest of the answer, or a block of it, and repeats until it agrees",
    ),
    _own(
        "lookahead",
        ".drafter:Lookahead",
        ".options:LookaheadOptions",
        "the target fills a window with n-grams and verifies those that fit",
    ),
    _own(
        "token_recycling",
        ".drafter:TokenRecycling",
        ".options:TokenRecyclingOptions",
        "what the target said followed the newest tokens, the last time it saw them",
    ),
    _own(
        "auto",
        ".drafter:Auto",
        ".options:AutoOptions",
        "one tree of retrieved text, the target's earlier predictions, its hidden state and a"
        " draft model, if there is one",
        "draft_model_if_given",
    ),
    _own(
        "rest",
        ".drafter:Rest",
        ".options:RestOptions",
        "the most frequent continuations of the newest tokens in a datastore",
        "datastore",
    ),
    _own(
        "pia",
        ".drafter:Pia",
        ".options:PiaOptions",
        "phrases of the prompt and of all outputs so far, from tries",
    ),
)
REGISTRY: dict[str, DrafterEntry] = {one.name: one for one in _OWN}


def available() -> list[str]:
    """Return the names that `create` and `LLM(drafter=...)` accept: our own, then those of
    installed packages.
    """
    return [*REGISTRY, *sorted({found.name for found in _installed()} - REGISTRY.keys())]


def entry(name: str) -> DrafterEntry:
    """Find a drafter by its name, or by "module:Class". A name of our own is never another
    package's.

    Raises:
        ConfigError: no such drafter (the close match is named), or two packages declare it.
    """
    if name in REGISTRY:
        return REGISTRY[name]
    found = {one.target: one for one in _installed() if one.name == name}
    if len(found) > 1:
        declared = " and ".join(f"{one.target!r} of {one.source}" for one in found.values())
        raise ConfigError(
            f"drafter {name!r}: got {declared}; expected one package to declare it. Name yours as"
            " 'module:Class'."
        )
    if found:
        return next(iter(found.values()))
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
    """The entry points of installed packages; none of them is imported."""
    from importlib.metadata import entry_points  # slow to import, and rarely needed

    for point in entry_points(group=GROUP):
        package = point.dist.name if point.dist is not None else "an unnamed package"
        yield DrafterEntry(point.name, point.value, source=f"package {package}")


def create(
    spec: str, *, draft_model: str | PreTrainedModel | CachedLM | None = None, **options: Any
) -> Drafter:
    """Build a drafter from "name", "name:key=value,...", "module:Class" or
    "module:Class:key=value,...".

    Args:
        draft_model: directory, hub id, GGUF file or loaded model, for the drafters that need or
            take one.
        options: more options, typed, as keywords.
    Raises:
        ConfigError: unknown name or option, a class that is no drafter, a value out of range, or a
            missing draft model.
    """
    from paceline.core.drafter import Drafter

    name, text = parse_spec(spec)
    cls = entry(name).load()
    for key in options.keys() & text.keys():
        raise ConfigError(
            f"drafter {name!r}: got option {key!r} twice, in {spec!r} and as a keyword; expected"
            " it once. Keep one."
        )
    chosen = build_options(cls.Options, {**text, **options}, f"drafter {name!r}")
    if draft_model is None and cls.needs_draft_model:
        raise ConfigError(
            f"drafter {name!r} needs a draft model: got none; expected a directory, hub id or"
            " loaded model. Pass draft_model=..."
        )
    if draft_model is not None and (cls.needs_draft_model or cls.takes_draft_model):
        from paceline.model.loading import draft_lm

        built = cls.build(chosen, draft_lm(draft_model))
    else:
        built = cls.build(chosen)
    if not isinstance(built, Drafter):
        raise ConfigError(
            f"drafter {name!r}: got a {type(built).__name__} from {cls.__name__}.build; expected a"
            " Drafter."
        )
    return built


class Maker:
    """Builds drafters from their specs, all with the same draft model, which is loaded when one
    needs it.

    Args:
        draft_model: as for `create`; None = there is none.
        dtype, device: to load it with.
    """

    def __init__(
        self,
        draft_model: str | Path | PreTrainedModel | None,
        dtype: str | torch.dtype,
        device: str,
    ) -> None:
        self._named, self._dtype, self._device = draft_model, dtype, device
        self._loaded: CachedLM | None = None

    def __call__(self, spec: str) -> Drafter:
        """Build one.

        Raises:
            as `create`.
        """
        if (
            entry(parse_spec(spec)[0]).takes_draft_model
            and self._loaded is None
            and self._named is not None
        ):
            from paceline.model.loading import draft_lm, load_draft

            self._loaded = draft_lm(load_draft(self._named, self._dtype, self._device))
        return create(spec, draft_model=self._loaded)
