"""Describe an acceptance head: its draft model, its training and its accuracy."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any, Protocol

from transformers import PreTrainedModel

from paceline.errors import ConfigError
from paceline.model.identity import Sketch, model_identity
from paceline.model.settings import MIN_SKETCH_COSINE
from paceline.report.documents import structured
from paceline.text.token_ids import is_padded
from paceline.util.files import digest_of, parse_json

KIND, VERSION = "paceline acceptance head", 2
# Inputs computed from the draft token's distribution. `log_rest` is the logarithm of the total
# probability of all other tokens.
SCALARS = ("log_prob", "log_rest", "entropy")
INPUTS = (("hidden",), ("hidden", *SCALARS))  # of the published heads, and of the packaged heads
_NAME = 8  # number of digits in a prompt's name


class RuleCost(Protocol):
    """Verification and drafting costs of a length rule (Huang et al. 2024, section 2)."""

    @property
    def verification_rate(self) -> float:
        """Number of target forward passes per new token."""

    @property
    def discard_rate(self) -> float:
        """Number of rejected draft tokens per new token."""


def latency(draft: float, target: float, rates: RuleCost) -> float:
    """Return the time per new token (Huang et al. 2024, equation 2.3).

    Args:
        draft: Time of one forward pass of the draft model, in any unit.
        target: Time of one forward pass of the target, in the same unit.
        rates: Target forward passes and rejected draft tokens per new token.
    """
    return draft + draft * rates.discard_rate + (target - draft) * rates.verification_rate


@dataclass(frozen=True, slots=True)
class ThresholdPoint:
    """The measured costs of one stopping threshold.

    Attributes:
        threshold: Probability of a rejection. Drafting stops when the predicted probability is
            higher.
        verification_rate: Number of target forward passes per new token.
        discard_rate: Number of rejected draft tokens per new token.
    """

    threshold: float
    verification_rate: float
    discard_rate: float


@dataclass(frozen=True, slots=True)
class HeadCard:
    """Metadata of an acceptance head.

    Attributes:
        target: Human-readable name of the target on which the head was trained.
        draft: Human-readable name of the draft model.
        draft_fingerprint: Fingerprint of the draft model (`model_identity`). Recordings for this
            head must have the same fingerprint.
        draft_sketch: Sample of the draft model's embedding (`Sketch.encode`), which identifies
            modified copies of the model.
        hidden_size: Hidden size of the draft model.
        vocab_size: Vocabulary size of the draft model.
        depth: Number of residual blocks (D in the paper).
        inputs: Inputs of the last layer, one of `INPUTS`. The paper's heads use only the hidden
            state.
        scale: Calibration: the acceptance probability is sigmoid(scale * logit + shift).
        shift: Calibration: number added to the scaled logit (see `scale`).
        prior: Weights of the inputs `SCALARS`, followed by a constant. From these, the head
            computes the logit of a token whose hidden state is not yet known. If empty, the draft
            model's probability is used instead.
        recipe: Settings for recording the training data and for training the head.
        metrics: Accuracy on held-out prompts.
        curve: Measured costs of each stopping threshold. If empty, `threshold=auto` is not
            available.
        train_prompts: Names of the training prompts, joined into one string. Each name has
            eight digits.
        dev_prompts: Names of the calibration prompts, joined into one string. Each name has
            eight digits.
        weights_sha256: SHA-256 checksum of the weights file; "" before saving.
    """

    target: str
    draft: str
    draft_fingerprint: str
    draft_sketch: str
    hidden_size: int
    vocab_size: int
    depth: int
    inputs: tuple[str, ...] = INPUTS[0]
    scale: float = 1.0
    shift: float = 0.0
    prior: tuple[float, ...] = ()
    recipe: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    curve: tuple[ThresholdPoint, ...] = ()
    train_prompts: str = ""
    dev_prompts: str = ""
    weights_sha256: str = ""

    @property
    def numbers(self) -> tuple[float, ...]:
        """All numbers on the card that are used in calculations and must be finite."""
        points = (number for point in self.curve for number in dataclasses.astuple(point))
        return (self.scale, self.shift, *self.prior, *points)

    @property
    def dev_names(self) -> set[str]:
        """Names of the calibration prompts."""
        return _names(self.dev_prompts)

    @property
    def seen_prompts(self) -> set[str]:
        """Names of all training and calibration prompts."""
        return _names(self.train_prompts) | _names(self.dev_prompts)

    def encode(self) -> bytes:
        """Return the card as the content of a JSON file, with a checksum over all entries."""
        entries = {"kind": KIND, "version": VERSION, **dataclasses.asdict(self)}
        return (json.dumps({**entries, "sha256": digest_of(entries)}, indent=1) + "\n").encode()

    @staticmethod
    def decode(content: bytes, where: str) -> HeadCard:
        """Read a card from the content of a JSON file.

        Args:
            content: Content of the file.
            where: Name of the head, for error messages.
        Raises:
            ConfigError: The content is not a card, is damaged, or has a different version.
        """
        try:
            entries = parse_json(content)
        except ValueError as error:
            raise ConfigError(
                f"head {where!r}: got a card that cannot be read ({error}); expected JSON. {HELP}"
            ) from error
        if not isinstance(entries, dict) or entries.get("kind") != KIND:
            raise ConfigError(
                f"head {where!r}: got different JSON; expected the card of an acceptance head."
                f" {HELP}"
            )
        if entries.pop("sha256", None) != digest_of(entries):
            raise ConfigError(
                f"head {where!r}: got a changed card; expected content that matches its checksum."
                f" {HELP}"
            )
        if entries.get("version") != VERSION:
            raise ConfigError(
                f"head {where!r}: got version {entries.get('version')}; expected {VERSION}, which"
                f" this release reads. {HELP}"
            )
        del entries["kind"], entries["version"]
        try:
            if wrong := entries.keys() ^ {entry.name for entry in dataclasses.fields(HeadCard)}:
                raise ValueError(f"{min(wrong)} is unexpected or missing")
            card = structured(entries, HeadCard)
            Sketch.decode(card.draft_sketch)
            if not all(map(math.isfinite, card.numbers)):
                raise ValueError("a number is not finite")
            return card
        except ValueError as error:
            raise ConfigError(
                f"head {where!r}: got a card with invalid entries ({error}); expected those of"
                f" this release. {HELP}"
            ) from error

    def check_draft(self, draft: PreTrainedModel, where: str) -> None:
        """Reject a draft model for which the head was not trained.

        Quantised, fine-tuned and padded copies of the head's draft model are accepted. With such a
        copy, the head may predict less well, but wrong predictions only cost time.

        Args:
            draft: Draft model in use.
            where: Name of the head, for error messages.
        Raises:
            ConfigError: Hidden size, vocabulary or weights differ; the message gives both values.
        """
        sketch = Sketch.decode(self.draft_sketch)
        hidden_size, vocab_size = model_identity(draft)[1], _text_config(draft).vocab_size
        padded = is_padded(max(vocab_size, self.vocab_size), min(vocab_size, self.vocab_size))
        for quality, expected, actual, fits in (
            ("hidden size", self.hidden_size, hidden_size, self.hidden_size == hidden_size),
            ("vocabulary", self.vocab_size, vocab_size, padded),
            (
                "closeness",
                f"at least {MIN_SKETCH_COSINE}",
                f"{sketch.closeness(draft):.2f}",
                sketch.resembles(draft),
            ),
        ):
            if not fits:
                raise ConfigError(
                    f"head {where!r}: got a draft model whose {quality} is {actual}; expected"
                    f" {expected}, as it was trained for the draft model {self.draft!r}. Use the"
                    " head's own draft model, or train a head for this one (paceline head)."
                )


HELP = "Train it again, or copy it again from its source."


def new_card(
    target: str, draft: str, model: PreTrainedModel, depth: int, inputs: tuple[str, ...] = INPUTS[0]
) -> HeadCard:
    """Return the card (metadata) of a new acceptance head for a draft model.

    Args:
        target: Human-readable name of the target.
        draft: Human-readable name of the draft model.
        model: The draft model.
        depth: Number of residual blocks.
        inputs: Inputs of the last layer, one of `INPUTS`.
    """
    fingerprint, hidden_size = model_identity(model)
    vocab_size = int(_text_config(model).vocab_size)
    return HeadCard(
        target,
        draft,
        fingerprint,
        Sketch.from_model(model).encode(),
        hidden_size,
        vocab_size,
        depth,
        inputs,
    )


def _text_config(model: PreTrainedModel) -> Any:
    return model.config.get_text_config(decoder=True)


def _names(joined: str) -> set[str]:
    return {joined[start : start + _NAME] for start in range(0, len(joined), _NAME)}
