"""Define heads that predict one tree level per forward pass, like EAGLE.

For a token that the target has chosen, the head reads the target's hidden states. For a draft node,
the head reads its own output at the parent node.
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
    """A head that drafts one tree level per forward pass.

    Attributes:
        dtype: Dtype in which the head runs.
    """

    dtype: torch.dtype

    @abstractmethod
    def run(self, batch: HeadBatch) -> Tensor:
        """Run a forward pass; return each token's output, [slots, columns, hidden]."""

    @abstractmethod
    def project(self, outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Convert outputs [n, hidden] to logits [n, columns].

        Returns:
            The logits, and the token id of each column. The ids are None if column i belongs to
            token i.
        """

    def extend(self, rows: Sequence[HeadRow]) -> None:
        """Run a forward pass, and store each text's output at its newest token."""
        for row, outputs in zip(rows, self._forward(rows), strict=True):
            row.text.outputs[ROOT] = outputs[-1]

    @torch.inference_mode()
    def predict(
        self, texts: Sequence[HeadText], nodes: Sequence[Sequence[HeadNode]]
    ) -> Predictions:
        """Return the most likely tokens after each draft node, in node order."""
        with self.timer:
            return self.likeliest(*self.logits(texts, nodes))

    @torch.inference_mode()
    def logits(
        self, texts: Sequence[HeadText], nodes: Sequence[Sequence[HeadNode]]
    ) -> tuple[Tensor, Tensor | None]:
        """Return the logits after draft nodes, running the head only on new nodes.

        Args:
            texts: Texts whose tokens have been passed to `read`.
            nodes: Nodes of each text. The parent of each node must have been passed before.
        Returns:
            Logits [nodes, columns], and the token id of each column. The ids are None if column i
            belongs to token i.
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
