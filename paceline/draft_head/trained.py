"""Trained foresight in a file: safetensors, with a card of what it is for and how it was made
(`paceline draft-head train`).
"""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paceline.draft_head.weights import Weights, ends, metadata_of, shape_of
from paceline.errors import ConfigError
from paceline.model.cached_lm import CachedLM
from paceline.model.identity import Sketch
from paceline.model.settings import MIN_SKETCH_COSINE, WARN_SKETCH_COSINE
from paceline.util.files import parse_json, write_atomically

_KIND, _VERSION = "paceline draft head", "2"
_HELP = "Train it with `paceline draft-head train`, or copy it again from where it came."


@dataclass(frozen=True, slots=True)
class Card:
    """For which model it is, and how it was made.

    Attributes:
        target: name of the model, for people. sketch: of its embedding (`Sketch.encode`).
            vocab_size: its tokens.
        settings, about: of the training, and what it learnt from. judged: what it was worth on
            answers held back.
    """

    target: str
    sketch: str
    vocab_size: int
    settings: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    judged: dict[str, Any] = field(default_factory=dict)

    def closeness(self, model: CachedLM) -> float:
        """Return the cosine between the embeddings of its own model and of another; 0 where the
        shapes differ.
        """
        return Sketch.decode(self.sketch).closeness(model.model)


def save(path: str | Path, weights: Weights, card: Card) -> None:
    """Write both; whoever reads there finds the old file or the new one.

    Raises:
        ConfigError: it cannot be written.
    """
    text = json.dumps(asdict(card))
    told = {"kind": _KIND, "version": _VERSION, "card": text, "sha256": weights.checksum(text)}
    write_atomically(path, weights.to_bytes(told))


def load(path: str | Path, model: CachedLM) -> Weights:
    """Return the weights of a file, as wide as the model.

    Raises:
        ConfigError: it cannot be read, is damaged, or of another model or version.
    """
    weights, card = read(path)
    closeness = card.closeness(model)
    if closeness < MIN_SKETCH_COSINE:
        raise ConfigError(
            f"draft head {str(path)!r}: got a model of another shape than {card.target!r}, for"
            f" which it was trained, or one whose embedding has a cosine of {closeness:.2f} to that"
            f" model's; expected {MIN_SKETCH_COSINE} or above. Train one for this model."
        )
    if closeness < WARN_SKETCH_COSINE:
        warnings.warn(
            f"draft head {str(path)!r} was trained for {card.target!r}, and this model's embedding"
            f" has a cosine of only {closeness:.2f} to that model's: its guesses may come true less"
            " often. Train one for this model, or leave it out (auto:draft_head=false).",
            stacklevel=2,
        )
    weights = weights.of_tokens_below(len(ends(model)[1].weight))
    inputs, hidden = shape_of(model)
    return weights.widened(hidden, inputs - hidden)


def read(path: str | Path) -> tuple[Weights, Card]:
    """Return what a file holds.

    Raises:
        ConfigError: it cannot be read, is damaged, or of another version.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"draft head {str(path)!r}: cannot be read: {error.strerror}; expected a file. {_HELP}"
        ) from error
    try:
        told = metadata_of(content)
        card = _card(told)
        weights = Weights.from_bytes(content)
        if told["sha256"] != weights.checksum(told["card"]):
            raise ValueError("its checksum is of other content")
        if (
            len(weights.kept)
            and not 0 <= int(weights.kept.min()) <= int(weights.kept.max()) < card.vocab_size
        ):
            raise ValueError(f"tokens beyond its vocabulary of {card.vocab_size}")
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigError(
            f"draft head {str(path)!r}: got a file that is none, or damaged ({error}). {_HELP}"
        ) from error
    return weights, card


def card_of(path: Path) -> Card:
    """Return the card of a file of the package, without its weights."""
    with path.open("rb") as file:
        size = file.read(8)
        return _card(metadata_of(size + file.read(int.from_bytes(size, "little"))))


def _card(told: dict[str, str]) -> Card:
    """Return the card in the header of a file.

    Raises:
        ValueError, LookupError, TypeError: there is none, or of another version.
    """
    if told.get("kind") != _KIND:
        raise ValueError("it is of another kind")
    if told.get("version") != _VERSION:
        raise ValueError(f"version {told.get('version')}; this release reads {_VERSION}")
    card = Card(**parse_json(told["card"]))
    Sketch.decode(card.sketch)
    return card
