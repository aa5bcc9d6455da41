"""Make models and run single forward passes, below paceline's public classes."""

from __future__ import annotations

import gc
import random
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from gpu_parts.run import Run
from paceline import SamplingParams, demo
from paceline.attention import cudnn
from paceline.bench.cost_scale import enlarge, parameter_count
from paceline.bench.settings import CostScale
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.model.cached_lm import CachedLM
from paceline.model.loading import load_draft, load_model
from paceline.model.tokenizer_loading import load_tokenizer

_NEXT, _TOKEN_IDS = 1, 500  # a token of every model, and the number of ids that texts use
LLAMA_8B = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 16384,
}
_TINY = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
}


class Opened:
    """Requests of equal length whose texts are cached, except for the newest token.

    Args:
        run: Options of the run.
        model: Loaded model.
        requests: Number of requests.
        context: Number of cached tokens per request.
    """

    def __init__(self, run: Run, model: PreTrainedModel, requests: int, context: int) -> None:
        self._lm = CachedLM(model, fixed_shapes=run.fixed_shapes)
        self._requests = [
            Request(_tokens(context, seed), SamplingParams(max_new_tokens=4096))
            for seed in range(requests)
        ]
        for request in self._requests:
            self._lm.open(request)
            while request.pending:
                self._lm.feed([request])
            request.token_ids.append(_NEXT)

    def forward(self, rows: int) -> None:
        """Launch a forward pass over each newest token and a chain of rows - 1 nodes."""
        self._lm.forward_nodes(self._requests, self._trees(rows))

    def logits(self, rows: int) -> Tensor:
        """Run `forward`, and return the logits, float32 [requests, rows, vocab]."""
        return self._lm.forward(self._requests, self._trees(rows)).float()

    def step(self, rows: int) -> None:
        """Run `forward`, and commit one more token of each request."""
        self.forward(rows)
        self._lm.commit([()] * len(self._requests))
        for request in self._requests:
            request.token_ids.append(_NEXT)

    def _trees(self, rows: int) -> list[DraftTree]:
        tree = DraftTree.chain(_tokens(rows - 1, rows)) if rows > 1 else EMPTY_TREE
        return [tree] * len(self._requests)


def _tokens(count: int, seed: int) -> list[int]:
    """Return random token ids with a fixed seed."""
    rng = random.Random(seed)
    return [rng.randrange(_TOKEN_IDS) for _ in range(count)]


def prefill(model: PreTrainedModel, tokens: int, chunk: int) -> None:
    """Launch the forward passes over a prompt.

    Args:
        model: Loaded model.
        tokens: Length of the prompt.
        chunk: Maximum number of tokens per forward pass.
    """
    lm = CachedLM(model, prefill_chunk=chunk)
    lm.reserve(1, tokens)
    request = Request(_tokens(tokens, 0), SamplingParams())
    lm.open(request)
    while request.pending:
        lm.feed([request])


def random_llama(run: Run) -> PreTrainedModel:
    """Return a model with the shapes of Llama-3.1-8B and random weights, made on the device."""
    shapes: dict[str, Any] = LLAMA_8B if run.on_cuda else _TINY
    config = LlamaConfig(**shapes, num_hidden_layers=run.sizes.layers)
    return _on_device(config, run).eval()


def _on_device(config: LlamaConfig, run: Run) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(run.dtype)
    try:
        with torch.device(run.device):
            return LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)


def measured_target(run: Run) -> tuple[PreTrainedModel, Any, str]:
    """Return the target of the part end_to_end, its tokenizer and a label.

    Raises:
        ConfigError, UnsupportedModelError: The model cannot be loaded or enlarged.
    """
    path = demo.target_of(run.model)
    model = load_model(path, run.dtype, run.device)
    if run.scale is not None:
        scale = CostScale.parse(run.scale)
        model = enlarge(model, scale.width, scale.layers)
    label = f"{run.model} {run.scale or 'as it is'}, {parameter_count(model) / 1e9:.2f} B"
    return model, load_tokenizer(None, path), label


def measured_draft(run: Run) -> PreTrainedModel | None:
    """Return the draft model of the part end_to_end; None without one."""
    return None if run.draft_model is None else load_draft(run.draft_model, run.dtype, run.device)


def without_cudnn() -> AbstractContextManager[None]:
    """Keep SDPA from cuDNN, as our forward passes do."""
    return cudnn.without_cudnn()


def best_gap(model: PreTrainedModel, ids: list[int]) -> tuple[list[int], float]:
    """Return the two most likely next tokens after a text, and the gap of their logits."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids], device=model.device)).logits[0, -1].float()
    best = logits.topk(2)
    first, second = best.values.tolist()
    return best.indices.tolist(), first - second


def free_memory() -> None:
    """Return unused memory to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
