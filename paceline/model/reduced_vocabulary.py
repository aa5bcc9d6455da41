"""The tokens a draft model can say: a reduced vocabulary of its head (FR-Spec, Zhao et al. 2025),
kept in a file beside it.

Most of a small draft's time is its head, and most tokens of a large vocabulary are hardly ever
said. A draft may guess what it likes, so its answers stay the target's: tokens outside have
probability 0 in its distribution, under "reject" too. The folder stays a plain checkpoint with the
whole vocabulary; who does not know the file uses all of it.
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
from paceline.util.files import digest_of, parse_json, write_atomically

FILE = "kept_tokens.json"
_KIND, _VERSION, _CHECK = "paceline kept tokens", 1, "check"
# of the lowest number: its exponential is 0, and yet a mask over all others leaves a distribution
OUT_OF_REACH = 0.25


def kept_ids(model: PreTrainedModel) -> NDArray[np.int64] | None:
    """Return the tokens that a model's head keeps, ascending; None = all."""
    kept: Tensor | None = getattr(model.get_output_embeddings(), "token_ids", None)
    return None if kept is None else kept.cpu().numpy()


class ReducedLMHead(StateReader):
    """An LM head over the kept tokens; the logits of the others are so low that their probability
    is 0.

    Args:
        head: the whole one. token_ids: [kept], ascending.
    """

    token_ids: Tensor
    kept: Tensor
    added: Tensor | None

    def __init__(self, head: torch.nn.Linear, token_ids: Tensor) -> None:
        super().__init__()
        # the model's parameters stay what they were
        self.weight, self.bias = (head.weight, head.bias)
        self.register_buffer("token_ids", token_ids.to(head.weight.device), persistent=False)
        self.register_buffer(
            "kept", head.weight.detach()[self.token_ids].contiguous(), persistent=False
        )
        self.register_buffer(
            "added",
            None if head.bias is None else head.bias.detach()[self.token_ids],
            persistent=False,
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits [..., vocab] of hidden states [..., hidden]."""
        logits = torch.nn.functional.linear(hidden, self.kept, self.added)
        if self.state.reduced_logits:
            return logits
        return spread(logits, self.token_ids, len(self.weight))


def spread(said: Tensor, token_ids: Tensor, vocab_size: int) -> Tensor:
    """Return logits [..., vocab] of those of the kept tokens, [..., kept]: the probability of
    all others is 0.
    """
    logits = said.new_full(
        (*said.shape[:-1], vocab_size), torch.finfo(said.dtype).min * OUT_OF_REACH
    )
    return logits.index_copy_(-1, token_ids, said)


def keep_tokens(model: PreTrainedModel, token_ids: Sequence[int]) -> None:
    """Let a model say these tokens only.

    Raises:
        ConfigError: it has no LM head of its own.
    """
    head: Any = model.get_output_embeddings()
    if (
        type(head) is not torch.nn.Linear
        or not is_plain_product(head)
        or head.weight.dtype.itemsize < 2
    ):
        raise ConfigError(
            f"kept tokens: got {type(model).__name__}, which has no plain LM head; expected one to"
            f" reduce. Delete the file {FILE}."
        )
    model.set_output_embeddings(ReducedLMHead(head, torch.tensor(sorted(token_ids))))


def save_kept(folder: str | Path, token_ids: Sequence[int], vocab_size: int) -> None:
    """Write the file.

    Raises:
        ConfigError: it cannot be written.
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
    """Return the kept tokens of the model in a folder, ascending; None where it has its whole
    vocabulary.

    Raises:
        ConfigError: the file is damaged, of another version, or of another vocabulary.
    """
    path = Path(folder) / FILE
    if not path.is_file():
        return None
    try:
        found = parse_json(path.read_bytes())
        check = found.pop(_CHECK)
        sound = found["kind"] == _KIND and check == digest_of(found)
    except (OSError, ValueError, LookupError, AttributeError, TypeError):
        sound = False
    if not sound:
        raise ConfigError(
            f"kept tokens {str(path)!r}: got a damaged file; expected it as it was written. Fetch"
            " it again, or delete it: the draft then has its whole vocabulary."
        )
    if found["version"] != _VERSION or found["vocab_size"] != vocab_size:
        raise ConfigError(
            f"kept tokens {str(path)!r}: got version {found['version']}, of a vocabulary of"
            f" {found['vocab_size']}; expected version {_VERSION}, of the draft's {vocab_size}."
            " Delete it, or train the draft anew."
        )
    kept: list[int] = found["token_ids"]
    return kept
