"""Compute the target's hidden states after every token of a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.tree import EMPTY_TREE
from paceline.model.cached_lm import CachedLM
from paceline.model.eagle.layers import decoder_layers, decoder_of, inputs_of
from paceline.model.model_view import ModelView
from paceline.report.progress import progress_bar
from paceline.training.text_chunks import TextChunk


def read_states(
    model: CachedLM,
    chunks: Sequence[TextChunk],
    layers: tuple[int, ...] = (),
    progress: bool = False,
) -> Iterator[Tensor]:
    """Yield the target's hidden states for each chunk, [tokens, 1 + layers, hidden].

    The states after each token are the input to the LM head, followed by the inputs to `layers`. On
    the CPU, each thread processes a different chunk, because two threads are barely faster than one
    in a single forward pass.

    Args:
        model: Target model.
        chunks: Text chunks that the target reads.
        layers: Indices of the layers whose inputs are also returned.
        progress: Whether to show a progress bar.
    Raises:
        UnsupportedModelError: The model does not use its declared LM head to compute logits, or
            does not expose its layers.
    """
    _require_states(model)
    threads = torch.get_num_threads() if model.device.type == "cpu" else 1
    # set_num_threads applies to the calling thread
    pool = ThreadPoolExecutor(threads, "paceline reading", torch.set_num_threads, (1,))
    read = partial(_states_of, ModelView(model.model, model.products).module, layers)
    with progress_bar(shown=progress) as bar:
        task = bar.add_task("reading", total=sum(map(len, chunks)))
        try:
            parallel = min(threads, len(chunks)) > 1
            results = pool.map(read, chunks) if parallel else map(read, chunks)
            for chunk, states in zip(chunks, results, strict=True):
                yield states
                bar.advance(task, len(chunk))
        finally:
            pool.shutdown(cancel_futures=True)  # after Ctrl-C, skip the remaining chunks


def _states_of(model: PreTrainedModel, layers: tuple[int, ...], chunk: TextChunk) -> Tensor:
    with torch.no_grad(), inputs_of(decoder_layers(model, layers)) as inputs:
        ids = torch.from_numpy(chunk.token_ids).long()[None].to(model.device)
        last: Tensor = decoder_of(model)(input_ids=ids, use_cache=False).last_hidden_state
    return torch.stack([last[0], *(layer_input[0] for (layer_input,) in inputs)], dim=1).cpu()


def _require_states(model: CachedLM) -> None:
    request = Request([0], SamplingParams(max_new_tokens=1))
    model.open(request)
    try:
        model.forward_with_states([request], [EMPTY_TREE])
    finally:
        model.close(request)
