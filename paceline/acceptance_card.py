"""What a trained acceptance head says of itself: for which draft model, how it was made, how good it is."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel

from paceline.errors import ConfigError
from paceline.files import digest_of

KIND, VERSION = "paceline acceptance head", 1
SCALARS = ("log_prob", "log_rest", "entropy")  # of the drafted token's distribution; log_rest: the log of all the others' share
INPUTS = (("hidden",), ("hidden", *SCALARS))  # the published heads', and ours
MOST_BLOCKS = 4
_NAME = 8  # digits of a prompt's name
_SAMPLE = 64  # weights of each tensor that go into a fingerprint
_SIZES = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")


class Rates(Protocol):
    """What a rule for the length of drafts costs, per new token of the answers (section 2 of the paper)."""

    @property
    def verification_rate(self) -> float:
        """Target forwards."""

    @property
    def discard_rate(self) -> float:
        """Drafted tokens that were not kept."""


def latency(draft: float, target: float, rates: Rates) -> float:
    """Time per new token, equation 2.3.

    Args:
        draft, target: time of one forward of either model, in any unit.
    """
    return draft + draft * rates.discard_rate + (target - draft) * rates.verification_rate


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The rates that decoding with one threshold had, measured."""

    threshold: float
    verification_rate: float
    discard_rate: float


@dataclass(frozen=True, slots=True)
class HeadCard:
    """Everything about a head but its weights.

    Attributes:
        target, draft: names of the pair it was trained on, for people.
        draft_fingerprint: of the draft (`draft_identity`), for the check.
        hidden_size, vocab_size: of the draft. depth: D, residual blocks.
        inputs: what the last layer reads, one of `INPUTS`. The paper's heads read the hidden state alone.
        scale, shift: calibration; the acceptance chance is sigmoid(scale * logit + shift).
        prior: weights of `SCALARS` and of a constant in the logit of the chance of a token whose hidden state is not yet known;
            empty = the draft's own probability is taken for it.
        recipe: how it was recorded and trained. metrics: how good it is, on prompts it was not trained on.
        curve: what thresholds cost; empty = not measured, then `threshold=auto` is refused.
        train_prompts, dev_prompts: names of the prompts it was trained and calibrated on, eight digits each, joined.
        weights_sha256: of the weights' file, "" before it is saved.
    """

    target: str
    draft: str
    draft_fingerprint: str
    hidden_size: int
    vocab_size: int
    depth: int
    inputs: tuple[str, ...] = INPUTS[0]
    scale: float = 1.0
    shift: float = 0.0
    prior: tuple[float, ...] = ()
    recipe: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    curve: tuple[CurvePoint, ...] = ()
    train_prompts: str = ""
    dev_prompts: str = ""
    weights_sha256: str = ""

    @property
    def dev_names(self) -> set[str]:
        """Names of the development prompts."""
        return _names(self.dev_prompts)

    @property
    def seen_prompts(self) -> set[str]:
        """Names of all prompts that the head was made with."""
        return _names(self.train_prompts) | _names(self.dev_prompts)

    def encode(self) -> bytes:
        """The card as a file: JSON with a checksum over everything in it."""
        entries = {"kind": KIND, "version": VERSION, **dataclasses.asdict(self)}
        return (json.dumps({**entries, "sha256": digest_of(entries)}, indent=1) + "\n").encode()

    @staticmethod
    def decode(content: bytes, where: str) -> HeadCard:
        """From a file's content; `where` names it in errors.

        Raises:
            ConfigError: it is no card, damaged, or of another version.
        """
        try:
            entries = json.loads(content)
        except ValueError as error:
            raise ConfigError(f"head {where!r}: its card is not JSON: {error}. {HELP}") from error
        if not isinstance(entries, dict) or entries.get("kind") != KIND:
            raise ConfigError(f"head {where!r}: its card is not the card of an acceptance head. {HELP}")
        if entries.pop("sha256", None) != digest_of(entries):
            raise ConfigError(f"head {where!r}: its card's checksum does not fit its content, so it was changed. {HELP}")
        if entries.get("version") != VERSION:
            raise ConfigError(f"head {where!r}: it has version {entries.get('version')}; this release reads {VERSION}. {HELP}")
        del entries["kind"], entries["version"]
        try:
            curve = tuple(CurvePoint(**point) for point in entries["curve"])
            tuples = {name: tuple(entries[name]) for name in ("inputs", "prior")}
            return HeadCard(**{**entries, **tuples, "curve": curve})
        except (LookupError, TypeError) as error:
            raise ConfigError(f"head {where!r}: its card lacks an entry or has one too many: {error}. {HELP}") from error

    def check_draft(self, draft: PreTrainedModel, where: str) -> None:
        """Refuse to work on another draft model.

        Raises:
            ConfigError: hidden size, vocabulary or weights are not those of the head's draft; it says both.
        """
        fingerprint, hidden_size = draft_identity(draft)
        vocab_size = _text_config(draft).vocab_size
        for what, mine, theirs in (
            ("hidden size", self.hidden_size, hidden_size),
            ("vocabulary", self.vocab_size, vocab_size),
            ("weights, by their fingerprint,", self.draft_fingerprint[:12], fingerprint[:12]),
        ):
            if mine != theirs:
                raise ConfigError(
                    f"head {where!r}: it was trained for the draft model {self.draft!r}, whose {what} is {mine}; this draft model"
                    f" has {theirs}. Use the head's own draft model, or train a head for this one (paceline head)."
                )


HELP = "Train it anew, or copy it again from where it came."


def draft_identity(draft: PreTrainedModel) -> tuple[str, int]:
    """Fingerprint and hidden size of a draft model; of the original, where it was enlarged (`paceline.bench.cost_scale`).

    The fingerprint is a SHA-256 over the sizes of the architecture and a sample of every weight tensor, rounded to bfloat16: a
    checkpoint has the same one whether it was loaded in float32 or in bfloat16.
    """
    config = _text_config(draft)
    origin = getattr(config, "enlarged_from", None)
    if origin is not None:
        return str(origin["fingerprint"]), int(origin["hidden_size"])
    digest = hashlib.sha256(json.dumps([getattr(config, name, None) for name in _SIZES]).encode())
    for name, parameter in draft.named_parameters():
        flat = parameter.detach().reshape(-1)
        sample = flat[:: max(1, len(flat) // _SAMPLE)][:_SAMPLE].to("cpu", torch.bfloat16)
        digest.update(f"{name} {tuple(parameter.shape)}".encode())
        digest.update(sample.view(torch.int16).numpy().tobytes())
    return digest.hexdigest(), int(config.hidden_size)


def new_card(target: str, draft: str, model: PreTrainedModel, depth: int, inputs: tuple[str, ...] = INPUTS[0]) -> HeadCard:
    """The card of a head for the draft `model` that says no more than that; `target` and `draft` are names for people."""
    fingerprint, hidden_size = draft_identity(model)
    return HeadCard(target, draft, fingerprint, hidden_size, int(_text_config(model).vocab_size), depth, inputs)


def _text_config(model: PreTrainedModel) -> Any:
    return model.config.get_text_config(decoder=True)


def _names(joined: str) -> set[str]:
    return {joined[place : place + _NAME] for place in range(0, len(joined), _NAME)}
