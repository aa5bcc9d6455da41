"""Part graph: forward passes as CUDA graphs, against launched ones of the same model."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

from gpu_parts.clock import host_ms, wait, wall_ms
from gpu_parts.models import Opened, free_memory, random_llama
from gpu_parts.run import Case, Run, Values

_CALLS = 4  # the last of them replays a graph that was captured before
REQUESTS = (1, 8)


def cases(run: Run) -> Iterator[Case]:
    """Compare graphs with launched forward passes: time, capture, bits."""
    model = cache(lambda: random_llama(run))
    for context, requests in itertools.product(run.sizes.contexts, REQUESTS):
        for rows in run.sizes.graph_rows:
            yield Case(
                case_name(context, requests, rows),
                partial(_compare, run, model, (requests, context), rows),
            )


def case_name(context: int, requests: int, rows: int) -> str:
    """Return the name of a forward pass in the results."""
    return f"context {context}, {requests} requests, {rows} rows each"


def _compare(run: Run, model: Any, sizes: tuple[int, int], rows: int) -> Values:
    free_memory()
    graph, launched = (
        Opened(replace(run, fixed_shapes=fixed), model(), *sizes) for fixed in (True, False)
    )
    seconds, outputs = [], []
    for _ in range(_CALLS):
        wait(run.device)
        start = time.perf_counter()
        logits = graph.logits(rows)
        wait(run.device)
        seconds.append(time.perf_counter() - start)
        outputs.append(logits.clone())
    expected = launched.logits(rows)
    repeats = max(2, run.sizes.repeats // 2)
    return {
        "graph_ms": wall_ms(partial(graph.forward, rows), run.device, repeats),
        "graph_host_ms": host_ms(partial(graph.forward, rows), run.device, repeats),
        "graph_growing_ms": wall_ms(partial(graph.step, rows), run.device, repeats),
        "same_shape_launched_ms": 1e3 * seconds[1],
        "capture_ms": 1e3 * seconds[2],
        "launched_ms": wall_ms(partial(launched.forward, rows), run.device, repeats),
        "launched_host_ms": host_ms(partial(launched.forward, rows), run.device, repeats),
        "same_bits": bool(outputs[0].equal(outputs[-1])),
        "max_difference": float((outputs[-1] - expected).abs().max()),
        "max_logit": float(expected.abs().max()),
        "same_best": float((outputs[-1].argmax(-1) == expected.argmax(-1)).float().mean()),
    }
