"""Map a target's token ids to those of a draft model with a different tokenizer.

The draft model proposes only tokens that exist in both tokenizers (token-level intersection, TLI;
Timor et al. 2025, arXiv 2502.05202). The draft model's distribution is renormalised over these
tokens, so every verification rule stays exact. The target's tokens are converted to the draft
model's ids one by one. If the draft model's tokenizer lacks a token, it splits the token's text
into smaller tokens, and the draft model receives only the last of these.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.errors import ConfigError
from paceline.model.settings import MIN_COMMON_TOKENS, OUT_OF_REACH
from paceline.text.token_bytes import token_bytes

_Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TokenMap:
    """Tokens that a draft model and its target share under different ids.

    Attributes:
        target_ids: The target's ids of the shared tokens, [common], ascending.
        draft_ids: The draft model's ids of the shared tokens, ordered as in `target_ids`,
            [common].
        target_rows: Number of rows in the target's LM head.
        read_as: For each of the target's ids, the input id that the draft model receives instead,
            [target_rows].
    """

    target_ids: _Ids
    draft_ids: _Ids
    target_rows: int
    read_as: _Ids
    _columns: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False)

    @property
    def shared_rate(self) -> float:
        """Return the fraction of the target's tokens that both models have, from 0 to 1."""
        return len(self.target_ids) / self.target_rows

    def logits(self, logits: Tensor, num_reduced: int | None = None) -> Tensor:
        """Return the draft model's logits, indexed by the target's token ids.

        Token ids that the models do not share have probability 0.

        Args:
            logits: Logits, [..., rows of the draft model's LM head].
            num_reduced: Always None, because a reduced vocabulary is not supported here.
        """
        unreachable = torch.finfo(logits.dtype).min * OUT_OF_REACH
        shared = logits.new_full((*logits.shape[:-1], self.target_rows), unreachable)
        if logits.device not in self._columns:
            self._columns[logits.device] = (
                torch.from_numpy(self.target_ids).to(logits.device),
                torch.from_numpy(self.draft_ids).to(logits.device),
            )
        target_ids, draft_ids = self._columns[logits.device]
        return shared.index_copy_(-1, target_ids, logits.index_select(-1, draft_ids))

    def readable(self, token_ids: _Ids) -> _Ids:
        """Convert the target's token ids to input ids for the draft model."""
        return self.read_as[np.minimum(token_ids, self.target_rows - 1)]

    def reduced(self, kept_ids: _Ids) -> _Ids:
        """Reject a reduced vocabulary.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            "draft model: got a reduced vocabulary for a target with another tokenizer; expected"
            " the whole vocabulary. Delete the draft model's kept_tokens.json."
        )


def map_tokens(target: Any, draft: Any, target_rows: int, draft_rows: int) -> TokenMap:
    """Return the map between two tokenizers.

    Args:
        target: Tokenizer of the target.
        draft: Tokenizer of the draft model.
        target_rows: Number of rows in the target's LM head.
        draft_rows: Number of rows in the draft model's embedding.
    Raises:
        ConfigError: A tokenizer is missing or of an unsupported kind, or the tokenizers share too
            few tokens.
    """
    target_texts, draft_texts = (_token_texts(tokenizer) for tokenizer in (target, draft))
    if target_texts is None or draft_texts is None:
        owner = "the target" if target_texts is None else "the draft model"
        raise ConfigError(
            f"other_tokenizer: got no tokenizer whose tokens have fixed texts for {owner}; expected"
            " a byte-level or SentencePiece tokenizer for both models. Save the tokenizer in the"
            " model's folder, or use a draft model with the target's tokenizer."
        )
    ids = {data: number for number, data in sorted(draft_texts.items(), reverse=True)}
    pairs = {
        number: ids[data]
        for number, data in target_texts.items()
        if data in ids and number < target_rows and ids[data] < draft_rows
    }
    if len(pairs) < MIN_COMMON_TOKENS:
        raise ConfigError(
            f"other_tokenizer: got tokenizers with {len(pairs)} common tokens; expected at least"
            f" {MIN_COMMON_TOKENS}. Use a draft model with the target's tokenizer."
        )
    if target.eos_token_id is not None and draft.eos_token_id is not None:
        pairs[target.eos_token_id] = draft.eos_token_id
    return TokenMap(
        np.array(sorted(pairs)),
        np.array([pairs[number] for number in sorted(pairs)]),
        target_rows,
        _ids_to_read(target, draft, pairs, target_rows),
    )


def _token_texts(tokenizer: Any) -> dict[int, bytes] | None:
    """Return the bytes of all ordinary tokens by id; None if the bytes are unknown."""
    spellings = None if tokenizer is None else token_bytes(tokenizer)
    if spellings is None:
        return None
    texts = {number: spellings[number] for number in sorted(tokenizer.get_vocab().values())}
    return {number: each.data for number, each in texts.items() if each.data and not each.special}


def _ids_to_read(target: Any, draft: Any, pairs: dict[int, int], rows: int) -> _Ids:
    """Return the draft model's input id for each token id of the target."""
    others = [number for number in range(rows) if number not in pairs]
    texts = [target.decode([number]) if number < len(target) else "" for number in others]
    unknown = next(
        (number for number in (draft.unk_token_id, draft.eos_token_id) if number is not None), 0
    )
    read_as = np.full(rows, unknown, dtype=np.int64)
    read_as[list(pairs)] = list(pairs.values())
    spelled = draft([text or " " for text in texts], add_special_tokens=False)["input_ids"]
    for number, ids in zip(others, spelled, strict=True):
        if ids:
            read_as[number] = ids[-1]
    return read_as
