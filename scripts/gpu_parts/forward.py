"""Part forward: time of a forward pass of a model with 8 billion parameters, by rows and
context.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache, partial
from typing import Any

import torch
from transformers import DynamicCache

from gpu_parts.clock import host_ms, wall_ms
from gpu_parts.models import Opened, prefill, random_llama, without_cudnn
from gpu_parts.run import Case, Run, Values

_WARM_CONTEXT = 64
_REQUESTS = ((8, 1), (8, 8), (32, 1), (32, 4))  # requests and rows of each


def cases(run: Run) -> Iterator[Case]:
    """Time forward passes of a random model with 8 billion parameters, with and without
    waits.
    """
    model = cache(lambda: random_llama(run))
    yield Case("transformers, 1 row without cuDNN", lambda: _transformers(run, model(), False))
    yield Case("transformers, 1 row", lambda: _transformers(run, model(), True))
    for context in run.sizes.contexts:
        opened = cache(lambda context=context: Opened(run, model(), 1, context))
        for rows in run.sizes.rows:
            name = f"context {context}, {rows} rows"
            yield Case(name, partial(_rows, run, opened, rows))
        opened.cache_clear()
    for chunk in run.sizes.prefill_chunks:
        name = f"prefill {run.sizes.prompt} tokens in chunks of {chunk}"
        yield Case(name, partial(_prefill, run, model, chunk))
    context = run.sizes.contexts[0]
    for requests, rows in _REQUESTS:
        name = f"context {context}, {requests} requests, {rows} rows each"
        yield Case(name, partial(_batch, run, model, (requests, context), rows))


def _transformers(run: Run, model: Any, with_cudnn: bool) -> Values:
    """Time single tokens with a growing cache, as in `generate`."""
    ids = torch.ones(1, _WARM_CONTEXT, dtype=torch.long, device=run.device)
    kept = DynamicCache(config=model.config)

    def step() -> None:
        model(input_ids=ids[:, :1], past_key_values=kept, use_cache=True)

    with torch.inference_mode(), nullcontext() if with_cudnn else without_cudnn():
        model(input_ids=ids, past_key_values=kept, use_cache=True)
        return {
            "ms": wall_ms(step, run.device, run.sizes.repeats),
            "host_ms": host_ms(step, run.device, run.sizes.repeats),
        }


def _rows(run: Run, opened: Any, rows: int) -> Values:
    return _times(run, opened(), rows)


def _batch(run: Run, model: Any, sizes: tuple[int, int], rows: int) -> Values:
    requests, context = sizes
    return _times(run, Opened(run, model(), requests, context), rows)


def _prefill(run: Run, model: Any, chunk: int) -> Values:
    call = partial(prefill, model(), run.sizes.prompt, chunk)
    return {"ms": wall_ms(call, run.device, 3, warm_up=1), "host_ms": host_ms(call, run.device, 1)}


def _times(run: Run, opened: Opened, rows: int) -> Values:
    """Time forward passes over a chain per request."""
    repeats = max(2, run.sizes.repeats // 2)
    same = partial(opened.forward, rows)
    growing = partial(opened.step, rows)
    return {
        "ms": wall_ms(same, run.device, repeats),
        "growing_ms": wall_ms(growing, run.device, repeats, warm_up=1),
        "host_ms": host_ms(same, run.device, repeats),
    }
