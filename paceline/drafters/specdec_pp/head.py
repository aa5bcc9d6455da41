"""The acceptance head of SpecDec++ (Huang, Guo, Wang 2024, section 3.2): how likely will the target
keep a drafted token?

D residual blocks x + SiLU(Linear(x)) on the draft's last hidden state, then a linear layer to two
classes, rejected and accepted. What is different here: every block has its own weights (the
published heads repeat one), and the last layer may also read scalars of the distribution that the
token was drawn from (`scalars_of`); the card's `inputs` says so.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

import safetensors
import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from paceline import demo
from paceline.drafters.specdec_pp.card import HELP, INPUTS, MOST_BLOCKS, SCALARS, HeadCard, latency
from paceline.drafters.specdec_pp.published import is_published, read_published
from paceline.errors import ConfigError
from paceline.util.files import write_atomically

WEIGHTS, CARD = "head.safetensors", "card.json"
_LEAST = 1e-6  # of 1 - probability: float32 resolves no less
REJECTED, ACCEPTED = 0, 1  # classes of the last layer, in the public code's order


class AcceptanceHead:
    """A trained head that estimates acceptance probabilities.

    Args:
        card: for which draft model it is, and how it was made.
        tensors: float32; "blocks.I.weight" [hidden, hidden], "blocks.I.bias" [hidden],
            "last.weight" [2, hidden + scalars], "last.bias" [2].
        width: hidden size of the draft that will be asked about; more than the card's for an
            enlarged draft, whose added dimensions are zero: so are the head's.
        device: where the draft's hidden states are.
    Raises:
        ConfigError: tensors that do not fit the card.
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
                functional.pad(tensors[f"blocks.{place}.weight"], (0, pad, 0, pad)).to(device),
                functional.pad(tensors[f"blocks.{place}.bias"], (0, pad)).to(device),
            )
            for place in range(card.depth)
        ]
        # The two-way softmax is a sigmoid of the classes' difference; calibration joins it in the
        # same product.
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
        """Read a head from its folder, for the draft model it was trained for, or for that one
        enlarged.

        A folder as the public code leaves it (config.json and model.safetensors) is read as well;
        it does not say which draft it was trained for, so only the hidden size is checked.

        Raises:
            ConfigError: no head there, a damaged one, or one for another draft model, hidden size
                or vocabulary.
        """
        folder = Path(path)
        where, width = str(path), _width(draft)
        if is_published(folder, CARD):
            return AcceptanceHead(*read_published(folder, draft), width, draft.device)
        card = HeadCard.decode(_read(folder / CARD, where), where)
        content = _read(folder / WEIGHTS, where)
        if hashlib.sha256(content).hexdigest() != card.weights_sha256:
            raise ConfigError(
                f"head {where!r}: got another {WEIGHTS}; expected the file that its card was"
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
        """Return the head that comes with the package for that draft model.

        Raises:
            ConfigError: there is none.
        """
        refused = []
        for folder in demo.HEADS:
            try:
                return AcceptanceHead.load(folder, draft)
            except ConfigError as error:
                refused.append(str(error))
        raise ConfigError(refused[0])

    def for_draft(self, draft: PreTrainedModel) -> AcceptanceHead:
        """Return this head for the draft model it was trained for, or for that one enlarged, on its
        device.

        Raises:
            ConfigError: it was trained for another draft model.
        """
        self.card.check_draft(draft, "in memory")
        return AcceptanceHead(self.card, self.tensors, _width(draft), draft.device)

    def save(self, directory: str | Path) -> None:
        """Write weights and card. A crash leaves no folder that loads and is wrong: the card holds
        its weights' checksum.

        Raises:
            ConfigError: they cannot be written.
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
        """Return the acceptance probability of each drafted token, given that all before it are
        accepted (equation 3.1).

        Args:
            hidden: [n, hidden], the draft's last hidden state (what its LM head reads) computed
                FROM each token.
            log_probs: [n], the draft's log-probability of the token in the distribution it was
                drawn from; for a greedy draft in the softmax at temperature 1.
            entropies: [n], of that distribution, in nats.
        Returns:
            float32 [n].
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
        """Return the same for tokens not fed yet, by the distribution they were drawn from alone;
        not in the paper.

        Args:
            log_probs: [n], as for `confidences`.
            entropies: [n], as for `confidences`.
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
        """Return the stopping threshold with the least latency per token (equation 2.3), by the
        rates of the card's curve.

        Args:
            target_seconds: time of one forward of the target.
            draft_seconds: time of one forward of the draft model.
        Raises:
            ConfigError: times that are not positive, or a card without a curve.
        """
        if not (
            target_seconds > 0
            and draft_seconds > 0
            and math.isfinite(target_seconds + draft_seconds)
        ):
            raise ConfigError(
                f"threshold: got {target_seconds} s for a target forward and {draft_seconds} s for"
                " a draft forward; expected two"
                " positive times. Measure them again."
            )
        if not self.card.curve:
            raise ConfigError(
                "threshold=auto: got a head whose card has no curve; expected measured costs of"
                " thresholds. Measure them"
                " (`paceline head calibrate`), or give a number such as threshold=0.7."
            )
        return min(
            self.card.curve, key=lambda point: latency(draft_seconds, target_seconds, point)
        ).threshold


def accept_logits(
    blocks: Sequence[tuple[Tensor, Tensor]], last: Tensor, bias: Tensor, hidden: Tensor
) -> Tensor:
    """Return the logit of "accepted" over "rejected" from the hidden state; the scalars' share is
    the caller's to add.

    Args:
        blocks: weight [hidden, hidden] and bias [hidden] of each.
        last: weights [hidden] of the last layer.
        bias: [], of the last layer.
        hidden: [n, hidden].
    Returns:
        [n].
    """
    for weight, offset in blocks:
        hidden = hidden + functional.silu(functional.linear(hidden, weight, offset))
    return torch.addmv(bias, hidden, last)


def scalars_of(log_probs: Tensor, entropies: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what the last layer may read beside the hidden state: log-probability, log of 1 -
    probability, entropy, [n] each.

    The two logarithms make log-odds, which tell 0.99 from 0.9999 where the log-probability alone
    hardly does.
    """
    return log_probs, torch.expm1(log_probs).neg_().clamp_(min=_LEAST).log_(), entropies


def check_tensors(card: HeadCard, tensors: dict[str, Tensor]) -> None:
    """Refuse tensors that are not those of a head as the card describes it.

    Raises:
        ConfigError: other inputs, depth, names, shapes or dtypes.
    """
    if card.inputs not in INPUTS:
        raise ConfigError(
            f"head: got inputs {', '.join(card.inputs)}; expected"
            f" {' or '.join(map(', '.join, INPUTS))}. {HELP}"
        )
    if len(card.prior) not in (0, len(SCALARS) + 1):
        raise ConfigError(
            f"head: got a prior of {len(card.prior)} weights; expected none or {len(SCALARS) + 1}."
            f" {HELP}"
        )
    if not 0 <= card.depth <= MOST_BLOCKS:
        raise ConfigError(
            f"head: got depth {card.depth}; expected 0 to {MOST_BLOCKS} residual blocks. {HELP}"
        )
    found = sum(name.startswith("blocks.") and name.endswith(".weight") for name in tensors)
    if found != card.depth:
        raise ConfigError(
            f"head: got a file with {found} residual blocks; expected {card.depth}, the depth in"
            f" its card. {HELP}"
        )
    hidden = card.hidden_size
    shapes = {"last.weight": (2, hidden + len(card.inputs) - 1), "last.bias": (2,)}
    for place in range(card.depth):
        shapes |= {f"blocks.{place}.weight": (hidden, hidden), f"blocks.{place}.bias": (hidden,)}
    for name in shapes.keys() | tensors.keys():
        got = tuple(tensors[name].shape) if name in tensors else "missing"
        if name not in shapes or got != shapes[name] or tensors[name].dtype != torch.float32:
            dtype = tensors[name].dtype if name in tensors else ""
            raise ConfigError(
                f"head: got tensor {name!r} {got} {dtype}; expected {shapes.get(name, 'none')}"
                f" torch.float32 by its card. {HELP}"
            )


def _width(draft: PreTrainedModel) -> int:
    return int(draft.config.get_text_config(decoder=True).hidden_size)


def _read(path: Path, where: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"head {where!r}: got a {path.name} that cannot be read: {error.strerror}; expected a"
            " folder that"
            " `paceline head train` has written. Give one."
        ) from error
