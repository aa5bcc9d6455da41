"""Record the target's hidden states for tokens that stay in the KV cache.

Draft models that use the target's states (EAGLE) read them from `Request.states`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline.core.node_logits import NodeLogits
from paceline.core.request import Request


def recorded_layers(requests: Sequence[Request]) -> tuple[int, ...]:
    """Return the layers whose hidden states any request records, in ascending order."""
    return tuple(
        sorted(
            {
                layer
                for request in requests
                if request.states is not None
                for layer in request.states.layers
            }
        )
    )


def record_states(
    requests: Sequence[Request],
    logits: NodeLogits,
    layers: tuple[int, ...],
    accepted: Sequence[Sequence[int]],
) -> None:
    """Record the hidden states of the tokens that the step will keep in the KV cache.

    Args:
        requests: Requests in the forward pass.
        logits: Result of the forward pass, with hidden states.
        layers: Layers whose states are in `logits`, in ascending order.
        accepted: Accepted nodes for each request.
    """
    assert logits.states is not None, "forward_with_states fills it"
    assert logits.pending is not None, "forward_with_states fills it"
    for request, start, pending, path in zip(
        requests, logits.starts, logits.pending, accepted, strict=True
    ):
        if request.states is not None:
            states = torch.cat(
                (pending, logits.states[[start, *(start + 1 + node for node in path)]])
            )
            if request.states.layers != layers:
                states = states[
                    :, [0, *(1 + layers.index(layer) for layer in request.states.layers)]
                ]
            request.states.write(request.cached, states)
