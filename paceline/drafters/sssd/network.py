"""Compute the confidence of a candidate token with a small neural network.

The `sssd` drafter uses the network if its option `fusion` is `calibrated`:

    inputs of the token [19] and of the node [17] -> first layer -> 16 ReLU units -> second layer
    -> logistic unit

All candidate tokens after a node have the same node inputs. `begin_node` computes the contribution
of these inputs to the first layer once per node.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.drafters.sssd.counting import STORE, SuccessorCounts
from paceline.drafters.sssd.features import (
    FEATURES,
    INPUTS,
    TOKEN_INPUTS,
    Inputs,
    describe_token,
)
from paceline.drafters.sssd.settings import HIDDEN, LONGEST
from paceline.util.compiled import Records, kernel, subroutine


class Network(NamedTuple):
    """The network's inputs and hidden units for one candidate token.

    Attributes:
        inputs: Inputs by name, [1].
        columns: View of the memory of `inputs` as a plain array, [len(FEATURES)].
        node_units: First-layer sums over the bias and the node's inputs only, [HIDDEN].
        units: First-layer sums over all inputs, [HIDDEN].
        alike: For each match length, the confidence of tokens that occur once in the datastore and
            not in the request, [LONGEST + 1]. Index 0 is for matches that skip the newest token.
            The value -1 means that the confidence has not been computed yet.
    """

    inputs: Records[Inputs]
    columns: NDArray[np.float32]
    node_units: NDArray[np.float32]
    units: NDArray[np.float32]
    alike: NDArray[np.float64]


@subroutine
def new_network() -> Network:
    """Return scratch arrays for evaluating the network one token at a time."""
    columns = np.empty(len(FEATURES), dtype=np.float32)
    units = np.empty(HIDDEN, dtype=np.float32)
    return Network(
        columns.view(INPUTS),
        columns,
        np.empty(HIDDEN, dtype=np.float32),
        units,
        np.empty(LONGEST + 1),
    )


@kernel
def begin_node(network: Network, weights: NDArray[np.float32]) -> None:
    """Compute the part of the first layer that is the same for all tokens of a node.

    Call `describe_node` first.

    Args:
        network: Inputs and hidden units, to be updated.
        weights: Weights, [WEIGHTS]; the first layer is stored input by input.
    """
    columns, node_units = network.columns, network.node_units
    network.alike[:] = -1.0
    for unit in range(HIDDEN):
        node_units[unit] = weights[columns.size * HIDDEN + unit]
    for index in range(TOKEN_INPUTS, columns.size):
        value = columns[index]
        for unit in range(HIDDEN):
            node_units[unit] += value * weights[index * HIDDEN + unit]


@kernel
def confidence_of(
    network: Network,
    counts: SuccessorCounts,
    which: int,
    best: int,
    end: int,
    seen: int,
    weights: NDArray[np.float32],
) -> float:
    """Return the network's confidence in one token; call `begin_node` first.

    After a node, many tokens occur only once in the datastore, and never in the request. The inputs
    of such a token depend only on the length of the match before it. The function therefore
    computes the confidence of these tokens only once per match length.

    Args:
        network: Inputs and hidden units, to be updated.
        counts: Counts of the tokens that follow the node.
        which: Index of the token in `counts.tokens`.
        best: Index of the token after the longest match in the request, or -1.
        end: Text position after the node.
        seen: Latest position of the token in the request, or -1.
        weights: Weights of the network, [WEIGHTS].
    """
    token = counts.tokens[which]
    match = token.longest[STORE]
    single = token.pointers == 1 and seen < 0 and token.nearest < 0 and token.votes == 0
    if single and network.alike[match] >= 0:
        return float(network.alike[match])
    describe_token(network.inputs[0], counts, which, best, end, seen)
    confidence = _run(network, weights)
    if single:
        network.alike[match] = confidence
    return confidence


@kernel
def _run(network: Network, weights: NDArray[np.float32]) -> float:
    """Evaluate the network: a layer of ReLU units, followed by a logistic unit."""
    columns, units = network.columns, network.units
    for unit in range(HIDDEN):
        units[unit] = network.node_units[unit]
    for index in range(TOKEN_INPUTS):
        value = columns[index]
        for unit in range(HIDDEN):
            units[unit] += value * weights[index * HIDDEN + unit]
    second = (columns.size + 1) * HIDDEN
    total = weights[second + HIDDEN]
    for unit in range(HIDDEN):
        total += max(units[unit], np.float32(0.0)) * weights[second + unit]
    return 1.0 / (1.0 + math.exp(-total))
