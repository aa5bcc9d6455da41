"""Define heads that predict one token per forward pass (EAGLE).

For a token that the target has chosen, the head reads the target's states. For a draft node, it
reads its own output at the parent node.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.state_heads.forward_pass import HeadBatch, HeadRow, lay_out, outputs_of
from paceline.state_heads.head import Predictions, StateHead
from paceline.state_heads.text import ROOT, HeadNode, HeadText


class StepHead(StateHead):
    """A head that predicts one token per forward pass.

    Attributes:
        dtype: Dtype of the head.
    """

    dtype: torch.dtype

    @abstractmethod
    def run(self, batch: HeadBatch) -> Tensor:
        """Run a forward pass, and return each token's output, [rows, columns, hidden]."""

    @abstractmethod
    def project(self, outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the logits for outputs [n, hidden], and the token id of each column."""

    def extend(self, rows: Sequence[HeadRow]) -> None:
        """Run a forward pass, and store the output for each text's newest token."""
        for row, outputs in zip(rows, self._forward(rows), strict=True):
            row.text.outputs[ROOT] = outputs[-1]

    @torch.inference_mode()
    def predict(
        self, texts: Sequence[HeadText], nodes: Sequence[Sequence[HeadNode]]
    ) -> Predictions:
        """Return the most likely tokens after draft nodes, in node order."""
        with self.timer:
            return self.likeliest(*self.logits(texts, nodes))

    @torch.inference_mode()
    def logits(
        self, texts: Sequence[HeadText], nodes: Sequence[Sequence[HeadNode]]
    ) -> tuple[Tensor, Tensor | None]:
        """Return the logits after draft nodes, computing each node only once.

        Args:
            texts, nodes: As in `predict`.
        Returns:
            Logits [nodes, tokens], and the token id of each column, as in `likeliest`.
        """
        rows, added = [], []
        for text, wanted in zip(texts, nodes, strict=True):
            new = [node for node in wanted if node.node not in text.outputs]
            if new:
                states = torch.stack([text.outputs[node.parent] for node in new])
                rows.append(HeadRow.of_nodes(text, new, states, self.window))
                added.append(new)
        if rows:
            for row, new, outputs in zip(rows, added, self._forward(rows), strict=True):
                row.text.outputs.update(
                    {node.node: output for node, output in zip(new, outputs, strict=True)}
                )
        read = [
            text.outputs[node.node]
            for text, wanted in zip(texts, nodes, strict=True)
            for node in wanted
        ]
        return self.project(torch.stack(read))

    def _forward(self, rows: Sequence[HeadRow]) -> list[Tensor]:
        return outputs_of(rows, self.run(lay_out(rows, self.cache, self._texts, self.dtype)))
