"""Read and write the draft heads that `paceline draft-head train` trains.

A draft head is stored in a safetensors file. The metadata of the file contains a card, which
describes the head's target model and training.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paceline.draft_head.weights import Weights, embedding_and_head, metadata_of, shape_of
from paceline.errors import ConfigError
from paceline.model.cached_lm import CachedLM
from paceline.model.identity import Sketch
from paceline.model.settings import MIN_SKETCH_COSINE, WARN_SKETCH_COSINE
from paceline.util.files import parse_json, write_atomically

_KIND, _VERSION = "paceline draft head", "2"
_HELP = "Train it with `paceline draft-head train`, or copy the original file again."


@dataclass(frozen=True, slots=True)
class Card:
    """Description of a draft head's target and training.

    Attributes:
        target: Human-readable name of the target.
        sketch: Sample of the target's embedding, encoded by `Sketch.encode`. `closeness` uses it to
            recognise the target.
        vocab_size: Size of the target's vocabulary.
        settings: Training settings.
        about: Description of the training data and the training run.
        judged: Accuracy of the head on held-out answers.
    """

    target: str
    sketch: str
    vocab_size: int
    settings: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    judged: dict[str, Any] = field(default_factory=dict)

    def closeness(self, model: CachedLM) -> float:
        """Return the cosine similarity between the embeddings of `model` and the target.

        The result is 0 if the embeddings have different shapes.
        """
        return Sketch.decode(self.sketch).closeness(model.model)


def save(path: str | Path, weights: Weights, card: Card) -> None:
    """Write a draft head atomically.

    Args:
        path: File to write.
        weights: Weights of the head.
        card: Description of the head.
    Raises:
        ConfigError: The file cannot be written.
    """
    text = json.dumps(asdict(card))
    checksum = weights.checksum(text)
    metadata = {"kind": _KIND, "version": _VERSION, "card": text, "sha256": checksum}
    write_atomically(path, weights.to_bytes(metadata))


def load(path: str | Path, model: CachedLM) -> Weights:
    """Load a draft head's weights, and adapt them to a model's vocabulary and size.

    Args:
        path: File with the draft head.
        model: Target model, which may be an enlarged version of the model for which the head was
            trained.
    Raises:
        ConfigError: The file cannot be read, is damaged, has a different version, or was trained
            for a different model.
    """
    weights, card = read(path)
    closeness = card.closeness(model)
    if closeness < MIN_SKETCH_COSINE:
        raise ConfigError(
            f"draft head {str(path)!r} was trained for {card.target!r}. This model has a"
            f" different shape, or its embedding is too different (cosine similarity"
            f" {closeness:.2f}; expected at least {MIN_SKETCH_COSINE}). Train a head for this"
            " model."
        )
    if closeness < WARN_SKETCH_COSINE:
        warnings.warn(
            f"draft head {str(path)!r} was trained for {card.target!r}. The cosine similarity of"
            f" the two models' embeddings is only {closeness:.2f}, so fewer of its tokens may be"
            " accepted. Train a head for this model, or leave the head out"
            " (auto:draft_head=false).",
            stacklevel=2,
        )
    weights = weights.limited_to(len(embedding_and_head(model)[1].weight))
    inputs, hidden = shape_of(model)
    return weights.widened(hidden, inputs - hidden)


def read(path: str | Path) -> tuple[Weights, Card]:
    """Read a draft head's weights and card from a file, and verify the checksum.

    Raises:
        ConfigError: The file cannot be read, is damaged, or has a different version.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"draft head {str(path)!r}: cannot be read: {error.strerror}; expected a file. {_HELP}"
        ) from error
    try:
        metadata = metadata_of(content)
        card = _card(metadata)
        weights = Weights.from_bytes(content)
        if metadata["sha256"] != weights.checksum(metadata["card"]):
            raise ValueError("its checksum does not match its content")
        token_ids = weights.token_ids
        if len(token_ids) and not 0 <= token_ids.min() <= token_ids.max() < card.vocab_size:
            raise ValueError(f"tokens beyond its vocabulary of {card.vocab_size}")
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigError(
            f"draft head {str(path)!r}: the file is not a draft head, or is damaged ({error})."
            f" {_HELP}"
        ) from error
    return weights, card


def card_of(path: Path) -> Card:
    """Read the card from a draft head's file without reading the weights."""
    with path.open("rb") as file:
        size = file.read(8)
        return _card(metadata_of(size + file.read(int.from_bytes(size, "little"))))


def _card(metadata: dict[str, str]) -> Card:
    """Parse the card in the metadata of a draft head's file.

    Raises:
        ValueError, LookupError, TypeError: The metadata contains no valid card, or the file has a
            different version.
    """
    if metadata.get("kind") != _KIND:
        raise ValueError("a different kind of file")
    if metadata.get("version") != _VERSION:
        raise ValueError(f"version {metadata.get('version')}; this release reads {_VERSION}")
    card = Card(**parse_json(metadata["card"]))
    Sketch.decode(card.sketch)
    return card
