"""Define the interface of heads that draft from the target's hidden states.

A head reads each token of a text, together with the hidden states from which the target chose the
token. The head then predicts the tokens that follow the newest token and each draft node.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from paceline.backend.resolve import topk_tokens
from paceline.core.tree import IntArray
from paceline.kv_cache.slot_cache import SlotCache
from paceline.state_heads.forward_pass import HeadRow
from paceline.state_heads.settings import CHOICES, PREFILL_COLUMNS
from paceline.state_heads.text import HeadNode, HeadText
from paceline.util.device_copies import fetch
from paceline.util.device_timer import DeviceTimer

Predictions = tuple[IntArray, NDArray[np.float32]]
"""Most likely token ids after n nodes, [n, k], most likely first, and their probabilities."""


class StateHead(ABC):
    """A head that drafts from the target's hidden states.

    Attributes:
        layers: Indices of the target layers whose inputs the head reads. The target also provides
            the input of its LM head.
        max_depth: Maximum depth of a draft node; None means no limit.
        window: Number of newest positions that a token attends to; None means all positions.
        cache: Keys and values of the head's layers.
        timer: Timer that measures how long the device spends in the head.
    """

    layers: tuple[int, ...] = ()
    max_depth: int | None = None
    window: int | None = None
    cache: SlotCache
    timer: DeviceTimer

    def __init__(self) -> None:
        self._texts: dict[int, HeadText] = {}  # open texts, by slot

    @abstractmethod
    def attach(self, target: PreTrainedModel) -> None:
        """Load the weights of the head for its target.

        Args:
            target: The model that verifies the drafts.
        Raises:
            ConfigError: The head was made for a different model.
        """

    def begin(self, layers: int, device: torch.device) -> None:
        """Create an empty cache and a timer for a head that has been loaded.

        Args:
            layers: Number of layers in the head.
            device: Device on which the head runs.
        """
        self.cache, self.timer = SlotCache(layers), DeviceTimer(device)
        self._texts.clear()

    @torch.inference_mode()
    def open(self, tokens: int) -> HeadText:
        """Create an empty text, with a slot in the head's cache.

        Args:
            tokens: Number of cache positions to reserve for the text.
        """
        self.cache.reserve(0, tokens)
        text = HeadText(self.cache.take())
        self._texts[text.slot] = text
        return text

    def close(self, text: HeadText) -> None:
        """Free the cache slot of a text."""
        del self._texts[text.slot]
        self.cache.give_back(text.slot)

    @torch.inference_mode()
    def read(
        self,
        texts: Sequence[HeadText],
        token_ids: Sequence[Sequence[int]],
        states: Sequence[Tensor],
    ) -> None:
        """Process tokens that the target has chosen, and discard all draft nodes.

        Args:
            texts: Texts to extend.
            token_ids: Ids of the new tokens of each text.
            states: Hidden states from which the target chose the tokens; per text,
                [n, 1 + layers, hidden]. The first state of each token is the LM head's input.
        """
        with self.timer:
            for text in texts:
                self.drop_nodes(text)
            for begin in range(0, max(map(len, token_ids)), PREFILL_COLUMNS):
                chunk = slice(begin, begin + PREFILL_COLUMNS)
                rows = [
                    HeadRow.of_text(text, tokens[chunk], self.fuse(known[chunk]), self.window)
                    for text, tokens, known in zip(texts, token_ids, states, strict=True)
                    if len(tokens) > begin
                ]
                self.extend(rows)
                for row in rows:
                    row.text.length += len(row.token_ids)

    def drop_nodes(self, text: HeadText) -> None:
        """Discard the draft nodes of a text."""
        text.drop_nodes()

    @abstractmethod
    def fuse(self, states: Tensor) -> Tensor:
        """Convert target states [n, 1 + layers, hidden] to the head's input [n, hidden]."""

    @abstractmethod
    def extend(self, rows: Sequence[HeadRow]) -> None:
        """Process the tokens of `rows`, and write their keys and values to the cache.

        The caller, `read`, then updates the lengths of the texts.
        """

    @abstractmethod
    def predict(
        self, texts: Sequence[HeadText], nodes: Sequence[Sequence[HeadNode]]
    ) -> Predictions:
        """Return the most likely tokens after each draft node, in node order.

        Args:
            texts: Texts whose tokens have been passed to `read`.
            nodes: Nodes of each text. The first call passes the root; later calls pass nodes whose
                parents were passed before.
        """

    @staticmethod
    def likeliest(logits: Tensor, token_ids: Tensor | None) -> Predictions:
        """Return the most likely tokens and their probabilities for each row of logits.

        Args:
            logits: Logits, [rows, columns].
            token_ids: Token id of each column, [columns]; None if column i belongs to token i.
        """
        columns, probs = topk_tokens(logits, min(CHOICES, logits.shape[-1]))
        if token_ids is not None:
            columns = token_ids[columns]
        fetched: list[NDArray[Any]] = fetch(columns, probs)
        return fetched[0], fetched[1]
