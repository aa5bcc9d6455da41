"""Load a DFlash head, which predicts a token block per pass (Chen et al. 2026).

The head consists of Qwen3 layers. The input is a block: the newest token, followed by mask tokens.
Each layer attends to the block, and to keys and values computed from the target's hidden states.
The output at each mask token predicts the token at that position. Only the keys and values from the
target's states stay in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.qwen3 import modeling_qwen3

from paceline.backend.plain_tensors import is_plain
from paceline.core.tree import IntArray
from paceline.model.forward_arguments import GENERATE_CACHE
from paceline.state_heads import fit
from paceline.state_heads.files import HeadFiles
from paceline.state_heads.forward_pass import HeadBatch, HeadRow, lay_out, outputs_of
from paceline.state_heads.head import Predictions, StateHead
from paceline.state_heads.layer_configs import layer_config
from paceline.state_heads.text import HeadNode, HeadText
from paceline.state_heads.weights import (
    TARGET_PARTS,
    dtype_of,
    own_token_ids,
    vocabulary_rows,
)


class DFlashModule(nn.Module):
    """The layers of a DFlash head, without a KV cache.

    Args:
        config: Configuration of the decoder layers.
        read: Number of values in one token's target states, over all layers that the head reads.
    """

    def __init__(self, config: Any, read: int) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(read, hidden, bias=False)
        self.hidden_norm = modeling_qwen3.Qwen3RMSNorm(hidden, eps)
        self.layers = nn.ModuleList(
            modeling_qwen3.Qwen3DecoderLayer(config, index)
            for index in range(config.num_hidden_layers)
        )
        self.norm = modeling_qwen3.Qwen3RMSNorm(hidden, eps)
        self.rotary_emb = modeling_qwen3.Qwen3RotaryEmbedding(config)

    def fuse(self, states: Tensor) -> Tensor:
        """Project target states [tokens, layers, target hidden] to [tokens, hidden]."""
        fused: Tensor = self.hidden_norm(self.fc(states.flatten(1)))
        return fused

    def write(self, fused: Tensor, positions: Tensor, cache: Any) -> None:
        """Compute each layer's keys and values from fused states, and cache them.

        Args:
            fused: Output of `fuse`, [rows, columns, hidden].
            positions: Text positions, [rows, columns].
            cache: Cache that receives the keys and values.
        """
        cosine, sine = self.rotary_emb(fused, position_ids=positions)
        for index, layer in enumerate(self.layers):
            attention: Any = layer.self_attn
            shape = (*fused.shape[:-1], -1, attention.head_dim)
            keys = attention.k_norm(attention.k_proj(fused).view(shape)).transpose(1, 2)
            values = attention.v_proj(fused).view(shape).transpose(1, 2)
            _, keys = modeling_qwen3.apply_rotary_pos_emb(keys, keys, cosine, sine)
            cache.update(keys, values, index)

    def forward(
        self, embedded: Tensor, positions: Tensor, masks: Sequence[Tensor], cache: Any
    ) -> Tensor:
        """Run the layers on one block per row; return the outputs in the input's shape.

        Args:
            embedded: Embeddings of the newest token and the mask tokens, [rows, columns, hidden].
            positions: Text positions, [rows, columns].
            masks: Attention mask of each layer, added to the attention scores.
            cache: Cache with the keys and values computed from the target's states.
        """
        turns = self.rotary_emb(embedded, position_ids=positions)
        hidden = embedded
        for layer, mask in zip(self.layers, masks, strict=True):
            hidden = layer(
                hidden,
                attention_mask=mask,
                position_ids=positions,
                position_embeddings=turns,
                **{GENERATE_CACHE: cache},
            )
        outputs: Tensor = self.norm(hidden)
        return outputs


class DFlashHead(StateHead):
    """Drafts with a published DFlash head.

    Args:
        files: Files of the head.
    Raises:
        ConfigError: The configuration does not describe a supported DFlash head.
    """

    def __init__(self, files: HeadFiles) -> None:
        super().__init__()
        self._files, config = files, files.config
        nested = config.get("dflash_config") or {}
        try:
            settings = config.get("transformer_layer_config", config)
            self._config: Any = layer_config({**settings, "model_type": "qwen3"})
            self._block_size = int(config.get("block_size") or nested["block_size"])
            self._mask_token = int(config.get("mask_token_id") or nested["mask_token_id"])
            # The nested entry refers to the output of each layer, which is the next one's input.
            self.layers = tuple(
                config.get("aux_hidden_state_layer_ids")
                or (layer + 1 for layer in nested["target_layer_ids"])
            )
        except (LookupError, ValueError, TypeError) as error:
            raise files.error(f"{type(error).__name__}: {error}") from error
        self._first_column = 0 if config.get("sample_from_anchor", False) else 1
        self._depth = self.max_depth = self._block_size - self._first_column
        self._is_unscaled = "speculators_model_type" in config
        self._sees_block = bool(config.get("sliding_window_non_causal", False))
        self._blocks: dict[int, tuple[IntArray, NDArray[np.float32]]] = {}  # by slot
        self._module: DFlashModule
        self._target: PreTrainedModel
        self._head: Tensor | None = None
        self._token_ids: Tensor | None = None

    def attach(self, target: PreTrainedModel) -> None:
        """Load the weights of the head, and use the target's embedding.

        Args:
            target: The model that verifies the drafts.
        Raises:
            ConfigError: The head was made for a different model, or its weights are damaged.
        """
        source, tensors = self._files.source, self._files.tensors()
        fit.check_layers(source, self.layers, target)
        fit.warn_of_vocabulary(source, self._config.vocab_size, target)
        fit.warn_of_embedding(source, tensors.get("embed_tokens.weight"), target)
        hidden = int(target.config.get_text_config(decoder=True).hidden_size)
        fit.check_width(source, self._config.hidden_size, hidden)
        if "fc.weight" in tensors:
            fit.check_width(source, tensors["fc.weight"].shape[-1], len(self.layers) * hidden)
        weights = {name: value for name, value in tensors.items() if name not in TARGET_PARTS}
        own_head = weights.pop("lm_head.weight", None)
        self._vocab_size = vocabulary_rows(target)
        try:
            token_ids = own_token_ids(tensors, self._vocab_size)
            module = DFlashModule(self._config, len(self.layers) * hidden)
            module.load_state_dict(weights, strict=True)
            if token_ids is not None and (own_head is None or len(own_head) != len(token_ids)):
                raise ValueError(f"{len(token_ids)} token ids, but no LM head with as many rows")
            if not 0 <= self._mask_token < self._vocab_size:
                raise ValueError(f"mask token {self._mask_token}, which the target does not have")
        except (LookupError, RuntimeError, ValueError, TypeError) as error:
            raise self._files.error(error) from error
        self._dtype = dtype_of(module, target)
        self._module = module.to(target.device, self._dtype).eval()
        self._target, self._token_ids = target, None
        if token_ids is not None:
            self._token_ids = token_ids.to(target.device)
        self._head = None if own_head is None else own_head.to(target.device, self._dtype)
        self._blocks.clear()
        self.begin(len(module.layers), target.device)

    def drop_nodes(self, text: HeadText) -> None:
        """Discard the block of tokens that the head has predicted after a text."""
        self._blocks.pop(text.slot, None)

    def fuse(self, states: Tensor) -> Tensor:
        """Project the target states [n, 1 + layers, target hidden] to [n, hidden]."""
        return self._module.fuse(states[:, 1:].to(self._dtype))

    def extend(self, rows: Sequence[HeadRow]) -> None:
        """Compute keys and values from the target's states, and cache them."""
        batch = lay_out(rows, self.cache, self._texts, self._dtype)
        # The target computed the states of each token at the position before the token.
        self._module.write(batch.states, batch.positions - 1, self.cache)

    @torch.inference_mode()
    def predict(
        self, texts: Sequence[HeadText], nodes: Sequence[Sequence[HeadNode]]
    ) -> Predictions:
        """Return the most likely tokens after each draft node.

        The head predicts a whole block per text, so all nodes of the same depth have the same
        prediction.
        """
        new = [
            (text, wanted[0].token)
            for text, wanted in zip(texts, nodes, strict=True)
            if wanted and text.slot not in self._blocks
        ]
        if new:
            with self.timer:
                outputs = self.run_blocks(new)
                tokens, probs = self.likeliest(self.project(torch.cat(outputs)), self._token_ids)
            for index, (text, _) in enumerate(new):
                block = slice(index * self._depth, (index + 1) * self._depth)
                self._blocks[text.slot] = tokens[block], probs[block]
        parts = [
            (self._blocks[text.slot], [node.depth for node in wanted])
            for text, wanted in zip(texts, nodes, strict=True)
            if wanted
        ]
        return (
            np.concatenate([tokens[depths] for (tokens, _), depths in parts]),
            np.concatenate([probs[depths] for (_, probs), depths in parts]),
        )

    def run_blocks(self, texts: Sequence[tuple[HeadText, int]]) -> list[Tensor]:
        """Run the head once, and return each text's outputs, [max depth, hidden].

        Args:
            texts: Pairs of a text and the id of its newest token.
        """
        columns = np.arange(self._block_size)
        masked = [self._mask_token] * (self._block_size - 1)
        states = torch.empty(self._block_size, 0, device=self._target.device)
        rows = [
            HeadRow(
                text,
                [newest, *masked],
                states,
                text.end - 1 + columns,
                text.length + columns,
                np.ones((self._block_size, text.length + self._block_size), dtype=np.bool_),
            )
            for text, newest in texts
        ]
        batch = lay_out(rows, self.cache, self._texts, self._dtype)
        embedded = self._embed(batch.token_ids).to(self._dtype)
        outputs = self._module(embedded, batch.positions, self._masks(batch, rows), self.cache)
        return [row[self._first_column :] for row in outputs_of(rows, outputs)]

    def _embed(self, token_ids: Tensor) -> Tensor:
        module: Any = self._target.get_input_embeddings()
        # The speculators library trains heads without the scale of Gemma's embeddings.
        if self._is_unscaled and is_plain(module.weight):
            return nn.functional.embedding(token_ids, module.weight)
        embedded: Tensor = module(token_ids)
        return embedded

    def project(self, outputs: Tensor) -> Tensor:
        """Compute logits [n, vocabulary] from the outputs [n, hidden] of `run_blocks`.

        If the files contain no LM head, the target's LM head computes the logits.
        """
        head: Any = self._target.get_output_embeddings()
        logits: Tensor = (
            head(outputs.to(self._target.dtype))
            if self._head is None
            else nn.functional.linear(outputs, self._head)
        )
        return logits if self._token_ids is not None else logits[:, : self._vocab_size]

    def _masks(self, batch: HeadBatch, rows: Sequence[HeadRow]) -> list[Tensor]:
        """Return each layer's attention mask, limited to its sliding window, if any."""
        kinds = self._config.layer_types
        sliding = batch.mask
        if "sliding_attention" in kinds:
            sliding, hidden = batch.mask.clone(), torch.finfo(self._dtype).min
            first = min(row.text.slot for row in rows)
            for row in rows:
                mask, length = sliding[row.text.slot - first, 0], row.text.length
                mask[:, : max(0, length - self._config.sliding_window)] = hidden
                if not self._sees_block:  # sliding layers attend causally within the block
                    later = torch.ones(len(mask), len(mask), dtype=torch.bool).triu(1)
                    block = mask[:, length : length + len(mask)]
                    block.masked_fill_(later.to(mask.device), hidden)
        return [sliding if kind == "sliding_attention" else batch.mask for kind in kinds]

    def close(self, text: HeadText) -> None:
        """Free the cache slot of a text, and discard its predicted block."""
        self._blocks.pop(text.slot, None)
        super().close(text)
