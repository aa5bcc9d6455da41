"""The target's hidden states after every token of texts, for what learns to read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from paceline.core.request import Request, SamplingParams
from paceline.core.tree import EMPTY_TREE
from paceline.model.cached_lm import CachedLM
from paceline.model.eagle.layers import decoder_layers, decoder_of, inputs_of
from paceline.model.model_view import ModelView
from paceline.report.progress import progress_bar
from paceline.training.text_chunks import TextChunk


def read_states(
    model: CachedLM,
    stretches: Sequence[TextChunk],
    layers: tuple[int, ...] = (),
    progress: bool = False,
) -> Iterator[Tensor]:
    """Yield the states of each stretch of text, [tokens, 1 + layers, hidden]: after each token what
    the LM head reads, then what goes into the layers named.

    As many texts at once as torch has threads: a second thread hardly helps in the forward of one.

    Raises:
        UnsupportedModelError: the model makes its logits without the head it names, so that its
            states cannot be read, or hides its layers.
    """
    _require_states(model)
    threads = torch.get_num_threads() if model.device.type == "cpu" else 1
    # a number of each thread
    pool = ThreadPoolExecutor(threads, "paceline reading", torch.set_num_threads, (1,))
    read = partial(_states_of, ModelView(model.model, model.products).module, layers)
    with progress_bar(shown=progress) as bar:
        task = bar.add_task("reading", total=sum(map(len, stretches)))
        try:
            found = (
                pool.map(read, stretches)
                if min(threads, len(stretches)) > 1
                else map(read, stretches)
            )
            for stretch, states in zip(stretches, found, strict=True):
                yield states
                bar.advance(task, len(stretch))
        finally:
            pool.shutdown(cancel_futures=True)  # who is interrupted does not wait for all


def _states_of(model: PreTrainedModel, layers: tuple[int, ...], stretch: TextChunk) -> Tensor:
    with torch.no_grad(), inputs_of(decoder_layers(model, layers)) as below:
        ids = torch.from_numpy(stretch.token_ids).long()[None].to(model.device)
        last: Tensor = decoder_of(model)(input_ids=ids, use_cache=False).last_hidden_state
    return torch.stack([last[0], *(one[0] for (one,) in below)], dim=1).cpu()


def _require_states(model: CachedLM) -> None:
    request = Request([0], SamplingParams(max_new_tokens=1))
    model.open(request)
    try:
        model.forward_with_states([request], [EMPTY_TREE])
    finally:
        model.close(request)
