"""Define the acceptance head of SpecDec++ (Huang, Guo, Wang 2024, section 3.2).

The head estimates the probability that the target accepts a draft token. The head applies D
residual blocks x + SiLU(Linear(x)) to the draft model's last hidden state. The last layer is linear
and has two classes, rejected and accepted. Here, every block has separate weights; the authors'
published heads repeat one block. Depending on the card's `inputs`, the last layer also reads
scalars computed from the token's distribution (`scalars_of`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from pathlib import Path

import safetensors
import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from paceline import demo
from paceline.drafters.specdec_pp.card import HELP, HeadCard, latency
from paceline.drafters.specdec_pp.head_layers import (
    ACCEPTED,
    REJECTED,
    accept_logits,
    check_tensors,
    scalars_of,
)
from paceline.drafters.specdec_pp.published import is_published, read_published
from paceline.errors import ConfigError
from paceline.util.files import write_atomically

WEIGHTS, CARD = "head.safetensors", "card.json"


class AcceptanceHead:
    """Estimates the acceptance probability of draft tokens with a trained head.

    Args:
        card: Metadata of the head.
        tensors: Weights in float32: "blocks.I.weight" [hidden, hidden], "blocks.I.bias" [hidden],
            "last.weight" [2, hidden + scalars], "last.bias" [2].
        width: Hidden size of the draft model in use. This size exceeds the card's hidden size if
            the draft model was enlarged with dimensions that are always zero. Default: the card's
            hidden size.
        device: Device of the draft model's hidden states.
    Raises:
        ConfigError: The tensors do not match the card.
    """

    def __init__(
        self,
        card: HeadCard,
        tensors: dict[str, Tensor],
        width: int | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        check_tensors(card, tensors)
        self.card = card
        self.tensors = tensors
        pad = (width or card.hidden_size) - card.hidden_size
        self._blocks = [
            (
                functional.pad(tensors[f"blocks.{block}.weight"], (0, pad, 0, pad)).to(device),
                functional.pad(tensors[f"blocks.{block}.bias"], (0, pad)).to(device),
            )
            for block in range(card.depth)
        ]
        # A softmax over two classes is the sigmoid of their difference. The calibration's scale is
        # multiplied into the same weights.
        last = card.scale * (tensors["last.weight"][ACCEPTED] - tensors["last.weight"][REJECTED])
        self._last = functional.pad(last[: card.hidden_size], (0, pad)).to(device)
        self._scalars = [float(weight) for weight in last[card.hidden_size :]]
        bias = (
            card.scale * (tensors["last.bias"][ACCEPTED] - tensors["last.bias"][REJECTED])
            + card.shift
        )
        self._bias = bias.to(device)

    @staticmethod
    def load(path: str | Path, draft: PreTrainedModel) -> AcceptanceHead:
        """Load a head from its folder, for use with a draft model.

        The draft model must be the one for which the head was trained, or a copy of it.
        `HeadCard.check_draft` describes the accepted copies. Copies that
        `paceline.bench.cost_scale` has enlarged are also accepted.

        A folder in the format of the SpecDec++ code (config.json and model.safetensors) is also
        accepted. This format does not name the draft model, so only the hidden size is checked.

        Args:
            path: Folder of the head.
            draft: Draft model in use.
        Raises:
            ConfigError: The head is missing or damaged, or belongs to a different draft model.
        """
        folder = Path(path)
        where, width = str(path), _width(draft)
        if is_published(folder, CARD):
            return AcceptanceHead(*read_published(folder, draft), width, draft.device)
        card = HeadCard.decode(_read(folder / CARD, where), where)
        content = _read(folder / WEIGHTS, where)
        if hashlib.sha256(content).hexdigest() != card.weights_sha256:
            raise ConfigError(
                f"head {where!r}: got a different {WEIGHTS}; expected the file that its card was"
                f" written for. {HELP}"
            )
        card.check_draft(draft, where)
        try:
            tensors = load(content)
        except (safetensors.SafetensorError, ValueError, LookupError) as error:
            raise ConfigError(
                f"head {where!r}: got a {WEIGHTS} that cannot be read: {error}; expected"
                f" safetensors. {HELP}"
            ) from error
        return AcceptanceHead(card, tensors, width, draft.device)

    @staticmethod
    def shipped(draft: PreTrainedModel) -> AcceptanceHead:
        """Return the packaged head that was trained for a draft model.

        Raises:
            ConfigError: The package has no head for this draft model.
        """
        refused = []
        for folder in demo.HEADS:
            try:
                return AcceptanceHead.load(folder, draft)
            except ConfigError as error:
                refused.append(str(error))
        raise ConfigError(refused[0])

    def for_draft(self, draft: PreTrainedModel) -> AcceptanceHead:
        """Return a copy of this head for a given draft model, on the model's device.

        Raises:
            ConfigError: The head was trained for a different draft model.
        """
        self.card.check_draft(draft, "in memory")
        return AcceptanceHead(self.card, self.tensors, _width(draft), draft.device)

    def save(self, directory: str | Path) -> None:
        """Write the weights and the card to a folder.

        The card contains the weights' checksum, so that `load` detects an interrupted save.

        Raises:
            ConfigError: The files cannot be written.
        """
        content = save(
            {name: tensor.detach().cpu().contiguous() for name, tensor in self.tensors.items()}
        )
        self.card = dataclasses.replace(
            self.card, weights_sha256=hashlib.sha256(content).hexdigest()
        )
        write_atomically(Path(directory) / WEIGHTS, content)
        write_atomically(Path(directory) / CARD, self.card.encode())

    def confidences(self, hidden: Tensor, log_probs: Tensor, entropies: Tensor) -> Tensor:
        """Return acceptance probabilities, given that all earlier tokens are accepted.

        See equation 3.1 of SpecDec++.

        Args:
            hidden: The draft model's last hidden state after processing each token, [n, hidden].
            log_probs: Log-probability of each token in its distribution, [n]. For a greedy draft,
                the distribution is the softmax at temperature 1.
            entropies: Entropy of each distribution in nats, [n].
        Returns:
            Acceptance probabilities, float32 [n].
        """
        with torch.inference_mode():
            logits = accept_logits(self._blocks, self._last, self._bias, hidden.float())
            if self._scalars:
                for scalar, weight in zip(
                    scalars_of(log_probs, entropies), self._scalars, strict=True
                ):
                    logits.add_(scalar, alpha=weight)
            return logits.sigmoid_()

    def early_confidences(self, log_probs: Tensor, entropies: Tensor) -> Tensor:
        """Return acceptance probabilities of tokens whose hidden states are not known yet.

        The estimate uses only each token's distribution. It is not part of SpecDec++.

        Args:
            log_probs: Log-probability of each token in its distribution, [n].
            entropies: Entropy of each distribution in nats, [n].
        Returns:
            Acceptance probabilities, float32 [n].
        """
        with torch.inference_mode():
            if not self.card.prior:
                return log_probs.exp()
            *weights, constant = self.card.prior
            logits = torch.full_like(log_probs, constant)
            for scalar, weight in zip(scalars_of(log_probs, entropies), weights, strict=True):
                logits.add_(scalar, alpha=weight)
            return logits.sigmoid_()

    def threshold(self, target_seconds: float, draft_seconds: float) -> float:
        """Return the threshold with the lowest latency per token (SpecDec++, eq. 2.3).

        Args:
            target_seconds: Duration of one target forward pass, in seconds.
            draft_seconds: Duration of one draft-model forward pass, in seconds.
        Raises:
            ConfigError: A duration is not positive, or no threshold costs are stored with the head.
        """
        if not (
            target_seconds > 0
            and draft_seconds > 0
            and math.isfinite(target_seconds + draft_seconds)
        ):
            raise ConfigError(
                f"threshold: got {target_seconds} s for a target forward and {draft_seconds} s for"
                " a draft forward; expected two positive times. Measure them again."
            )
        if not self.card.curve:
            raise ConfigError(
                "threshold=auto: no threshold costs are stored with the head."
                " Measure them (`paceline head calibrate`), or give a number such as"
                " threshold=0.7."
            )
        return min(
            self.card.curve, key=lambda point: latency(draft_seconds, target_seconds, point)
        ).threshold


def _width(draft: PreTrainedModel) -> int:
    return int(draft.config.get_text_config(decoder=True).hidden_size)


def _read(path: Path, where: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"head {where!r}: got a {path.name} that cannot be read: {error.strerror}; expected a"
            " folder that `paceline head train` has written. Give one."
        ) from error
