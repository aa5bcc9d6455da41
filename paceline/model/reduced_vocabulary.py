"""Reduce the vocabulary of a draft model's LM head (FR-Spec, Zhao et al. 2025).

The LM head accounts for most of a small draft model's time, and most tokens in a large vocabulary
are rare. Reducing the vocabulary does not change the target's answers, because verification is
exact with any draft. In the draft distribution, tokens outside the reduced vocabulary have
probability 0, including in rejection sampling. A file next to the checkpoint lists the reduced
vocabulary; the checkpoint contains the whole LM head.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from paceline.backend.products import is_plain_product
from paceline.errors import ConfigError
from paceline.model.forward_state import StateReader
from paceline.model.settings import OUT_OF_REACH
from paceline.util.files import digest_of, parse_json, write_atomically

FILE = "kept_tokens.json"
_KIND, _VERSION, _CHECK = "paceline kept tokens", 1, "check"


def kept_ids(model: PreTrainedModel) -> NDArray[np.int64] | None:
    """Return a model's reduced vocabulary in ascending order; None if it has none."""
    token_ids: Tensor | None = getattr(model.get_output_embeddings(), "token_ids", None)
    return None if token_ids is None else token_ids.cpu().numpy()


class ReducedLMHead(StateReader):
    """LM head over a reduced vocabulary; other tokens have probability 0.

    Args:
        head: LM head over the whole vocabulary.
        token_ids: Token ids in the reduced vocabulary, [kept], in ascending order.
    """

    token_ids: Tensor
    rows: Tensor
    added: Tensor | None

    def __init__(self, head: torch.nn.Linear, token_ids: Tensor) -> None:
        super().__init__()
        # The model's parameters stay the same.
        self.weight, self.bias = head.weight, head.bias
        self.register_buffer("token_ids", token_ids.to(head.weight.device), persistent=False)
        self.register_buffer(
            "rows", head.weight.detach()[self.token_ids].contiguous(), persistent=False
        )
        self.register_buffer(
            "added",
            None if head.bias is None else head.bias.detach()[self.token_ids],
            persistent=False,
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits [..., vocab] for hidden states [..., hidden]."""
        logits = torch.nn.functional.linear(hidden, self.rows, self.added)
        if self.state.reduced_logits:
            return logits
        return spread(logits, self.token_ids, len(self.weight))


def spread(reduced: Tensor, token_ids: Tensor, vocab_size: int) -> Tensor:
    """Expand reduced logits to [..., vocab]; other tokens have probability 0.

    Args:
        reduced: Logits for the reduced vocabulary, [..., kept].
        token_ids: Token ids of the reduced vocabulary, [kept].
        vocab_size: Size of the whole vocabulary.
    """
    logits = reduced.new_full(
        (*reduced.shape[:-1], vocab_size), torch.finfo(reduced.dtype).min * OUT_OF_REACH
    )
    return logits.index_copy_(-1, token_ids, reduced)


def keep_tokens(model: PreTrainedModel, token_ids: Sequence[int]) -> None:
    """Restrict a model's LM head to the given token ids.

    Raises:
        ConfigError: The model does not have a plain LM head.
    """
    head: Any = model.get_output_embeddings()
    if (
        type(head) is not torch.nn.Linear
        or not is_plain_product(head)
        or head.weight.dtype.itemsize < 2
    ):
        raise ConfigError(
            f"kept tokens: got {type(model).__name__}, which has no plain LM head; only a plain"
            f" one can be reduced. Delete the file {FILE}."
        )
    model.set_output_embeddings(ReducedLMHead(head, torch.tensor(sorted(token_ids))))


def save_kept(folder: str | Path, token_ids: Sequence[int], vocab_size: int) -> None:
    """Write a reduced vocabulary to a draft model's folder.

    Args:
        folder: Folder of the draft model.
        token_ids: Token ids of the reduced vocabulary.
        vocab_size: Size of the whole vocabulary.
    Raises:
        ConfigError: The file cannot be written.
    """
    content = {
        "kind": _KIND,
        "version": _VERSION,
        "vocab_size": vocab_size,
        "token_ids": sorted(map(int, token_ids)),
    }
    text = json.dumps({**content, _CHECK: digest_of(content)}, separators=(",", ":"))
    write_atomically(Path(folder) / FILE, f"{text}\n".encode())


def read_kept(folder: str | Path, vocab_size: int) -> list[int] | None:
    """Return the sorted reduced vocabulary in a model's folder; None if it has none.

    Args:
        folder: Folder of the draft model.
        vocab_size: Size of the whole vocabulary.
    Raises:
        ConfigError: The file is damaged or has a different version or vocabulary.
    """
    path = Path(folder) / FILE
    if not path.is_file():
        return None
    try:
        content = parse_json(path.read_bytes())
        check = content.pop(_CHECK)
        sound = content["kind"] == _KIND and check == digest_of(content)
    except (OSError, ValueError, LookupError, AttributeError, TypeError):
        sound = False
    if not sound:
        raise ConfigError(
            f"kept tokens {str(path)!r}: got a damaged file; expected an intact one. Fetch it"
            " again; or delete it, and the draft model uses its whole vocabulary."
        )
    if content["version"] != _VERSION or content["vocab_size"] != vocab_size:
        raise ConfigError(
            f"kept tokens {str(path)!r}: got version {content['version']} for a vocabulary of"
            f" {content['vocab_size']} tokens; expected version {_VERSION} for {vocab_size} tokens."
            " Delete the file, or train the draft model again."
        )
    token_ids: list[int] = content["token_ids"]
    return token_ids
