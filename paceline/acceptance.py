"""The acceptance head of SpecDec++ (Huang, Guo, Wang 2024, Section 3.2): how likely will the target keep a drafted token?

D residual blocks x + SiLU(Linear(x)) on the draft's last hidden state, then a linear layer to two classes, rejected and accepted.
Every block has its own weights (the published heads repeat one). Beyond the paper, the last layer may also read scalars of the
distribution that the token was drawn from (`scalars_of`); the card's `inputs` says so.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Sequence as Seq
from pathlib import Path

import safetensors
import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from paceline.acceptance_card import HELP, INPUTS, MOST_BLOCKS, SCALARS, HeadCard, latency
from paceline.acceptance_published import is_published, read_published
from paceline.errors import ConfigError
from paceline.files import write_atomically

WEIGHTS, CARD = "head.safetensors", "card.json"
_LEAST = 1e-6  # of 1 - probability: float32 resolves no less
REJECTED, ACCEPTED = 0, 1  # classes of the last layer, in the public code's order


class AcceptanceHead:
    """A trained head, ready to be asked.

    Args:
        card: what it is.
        tensors: float32; "blocks.I.weight" [hidden, hidden], "blocks.I.bias" [hidden], "last.weight" [2, hidden + scalars],
            "last.bias" [2].
        width: hidden size of the draft that will be asked about; more than the card's for an enlarged draft, whose added
            dimensions are zero: so are the head's.
        device: where the draft's hidden states are.
    Raises:
        ConfigError: tensors that do not fit the card.
    """

    def __init__(
        self, card: HeadCard, tensors: dict[str, Tensor], width: int | None = None, device: str | torch.device = "cpu"
    ) -> None:
        check_tensors(card, tensors)
        self.card = card
        self.tensors = tensors
        pad = (width or card.hidden_size) - card.hidden_size
        self._blocks = [
            (
                functional.pad(tensors[f"blocks.{place}.weight"], (0, pad, 0, pad)).to(device),
                functional.pad(tensors[f"blocks.{place}.bias"], (0, pad)).to(device),
            )
            for place in range(card.depth)
        ]
        # The two-way softmax is a sigmoid of the classes' difference; calibration joins it in the same product.
        last = card.scale * (tensors["last.weight"][ACCEPTED] - tensors["last.weight"][REJECTED])
        self._last = functional.pad(last[: card.hidden_size], (0, pad)).to(device)
        self._scalars = [float(weight) for weight in last[card.hidden_size :]]
        bias = card.scale * (tensors["last.bias"][ACCEPTED] - tensors["last.bias"][REJECTED]) + card.shift
        self._bias = bias.to(device)

    @staticmethod
    def load(path: str | Path, draft: PreTrainedModel) -> AcceptanceHead:
        """A head from its folder, for the draft model it was trained for, or for that one enlarged.

        A folder as the public code leaves it (config.json and model.safetensors) is read as well; it does not say which draft
        it was trained for, so only the hidden size is checked.

        Raises:
            ConfigError: no head there, a damaged one, or one for another draft model, hidden size or vocabulary.
        """
        folder = Path(path)
        where, width = str(path), int(draft.config.get_text_config(decoder=True).hidden_size)
        if is_published(folder, CARD):
            return AcceptanceHead(*read_published(folder, draft), width, draft.device)
        card = HeadCard.decode(_read(folder / CARD, where), where)
        content = _read(folder / WEIGHTS, where)
        if hashlib.sha256(content).hexdigest() != card.weights_sha256:
            raise ConfigError(f"head {where!r}: {WEIGHTS} is not the file that its card was written for. {HELP}")
        card.check_draft(draft, where)
        try:
            tensors = load(content)
        except (safetensors.SafetensorError, ValueError, LookupError) as error:
            raise ConfigError(f"head {where!r}: {WEIGHTS} cannot be read: {error}. {HELP}") from error
        return AcceptanceHead(card, tensors, width, draft.device)

    def save(self, directory: str | Path) -> None:
        """Write weights and card. A crash leaves no folder that loads and is wrong: the card names its weights by their sum.

        Raises:
            ConfigError: they cannot be written.
        """
        content = save({name: tensor.detach().cpu().contiguous() for name, tensor in self.tensors.items()})
        self.card = dataclasses.replace(self.card, weights_sha256=hashlib.sha256(content).hexdigest())
        write_atomically(Path(directory) / WEIGHTS, content)
        write_atomically(Path(directory) / CARD, self.card.encode())

    def chances(self, hidden: Tensor, log_probs: Tensor, entropies: Tensor) -> Tensor:
        """The chance of each drafted token to be accepted, given that all before it are (Equation 3.1).

        Args:
            hidden: [n, hidden], the draft's last hidden state (what its LM head reads) computed FROM each token.
            log_probs: [n], the draft's log-probability of the token in the distribution it was drawn from; for a greedy draft
                in the softmax at temperature 1.
            entropies: [n], of that distribution, in nats.
        Returns:
            float32 [n].
        """
        with torch.inference_mode():
            logits = accept_logits(self._blocks, self._last, self._bias, hidden.float())
            if self._scalars:
                for scalar, weight in zip(scalars_of(log_probs, entropies), self._scalars, strict=True):
                    logits.add_(scalar, alpha=weight)
            return logits.sigmoid_()

    def first_chances(self, log_probs: Tensor, entropies: Tensor) -> Tensor:
        """The chance of tokens that were drawn but not fed yet, by the distribution they were drawn from alone; not in the paper.

        Args:
            log_probs, entropies: [n], as for `chances`.
        Returns:
            float32 [n].
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
        """The stopping threshold whose latency per token is least by Equation 2.3, from the rates that the card's curve measured.

        Args:
            target_seconds, draft_seconds: of one forward of either model.
        Raises:
            ConfigError: times that are not positive, or a card without a curve.
        """
        if not (target_seconds > 0 and draft_seconds > 0 and math.isfinite(target_seconds + draft_seconds)):
            raise ConfigError(
                f"threshold: a target forward takes {target_seconds} s and a draft forward {draft_seconds} s; both must be"
                " positive."
            )
        if not self.card.curve:
            raise ConfigError(
                "threshold=auto: this head's card has no curve of what thresholds cost. Measure it (`paceline head calibrate`),"
                " or give a number such as threshold=0.7."
            )
        return min(self.card.curve, key=lambda point: latency(draft_seconds, target_seconds, point)).threshold


def accept_logits(blocks: Seq[tuple[Tensor, Tensor]], last: Tensor, bias: Tensor, hidden: Tensor) -> Tensor:
    """Logit of "accepted" over "rejected" from the hidden state; the scalars' share is the caller's to add.

    Args:
        blocks: weight [hidden, hidden] and bias [hidden] of each. last: [hidden]. bias: [].
        hidden: [n, hidden].
    Returns:
        [n].
    """
    for weight, offset in blocks:
        hidden = hidden + functional.silu(functional.linear(hidden, weight, offset))
    return torch.addmv(bias, hidden, last)


def scalars_of(log_probs: Tensor, entropies: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What the last layer may read beside the hidden state: log-probability, log of 1 - probability, and entropy, [n] each.

    The two logarithms make log-odds, which tell 0.99 from 0.9999 where the log-probability alone hardly does.
    """
    return log_probs, torch.expm1(log_probs).neg_().clamp_(min=_LEAST).log_(), entropies


def check_tensors(card: HeadCard, tensors: dict[str, Tensor]) -> None:
    """Refuse tensors that are not those of a head as the card describes it.

    Raises:
        ConfigError: other inputs, depth, names, shapes or dtypes.
    """
    if card.inputs not in INPUTS:
        raise ConfigError(f"head: its inputs are {', '.join(card.inputs)}; allowed is {' or '.join(map(', '.join, INPUTS))}.")
    if len(card.prior) not in (0, len(SCALARS) + 1):
        raise ConfigError(f"head: its prior has {len(card.prior)} weights; allowed are none or {len(SCALARS) + 1}. {HELP}")
    if not 0 <= card.depth <= MOST_BLOCKS:
        raise ConfigError(f"head: its depth is {card.depth}; allowed is from 0 to {MOST_BLOCKS} residual blocks.")
    found = sum(name.startswith("blocks.") and name.endswith(".weight") for name in tensors)
    if found != card.depth:
        raise ConfigError(f"head: its card says depth {card.depth}, and its file has {found} residual blocks. {HELP}")
    hidden = card.hidden_size
    shapes = {"last.weight": (2, hidden + len(card.inputs) - 1), "last.bias": (2,)}
    for place in range(card.depth):
        shapes |= {f"blocks.{place}.weight": (hidden, hidden), f"blocks.{place}.bias": (hidden,)}
    for name in shapes.keys() | tensors.keys():
        got = tuple(tensors[name].shape) if name in tensors else "missing"
        if name not in shapes or got != shapes[name] or tensors[name].dtype != torch.float32:
            dtype = tensors[name].dtype if name in tensors else ""
            raise ConfigError(
                f"head: tensor {name!r} is {got} {dtype}; by its card it is {shapes.get(name, 'not there')} torch.float32. {HELP}"
            )


def _read(path: Path, where: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"head {where!r}: {path.name} cannot be read: {error.strerror}. Give a folder that `paceline head train` has written."
        ) from error
