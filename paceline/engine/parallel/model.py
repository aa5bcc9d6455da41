"""Divide a step's draft trees among processes that have copies of the model.

This is lookahead parallelism (Fu et al. 2024, "Break the Sequential Dependency of LLM Inference
Using Lookahead Decoding", section 3.4). Every process (rank) runs the same loop, proposes the same
trees and computes a subset of the nodes. The ranks then exchange integers once, so that every rank
knows the target's token and argmax after every node. Random numbers depend only on seed and
position, so all ranks draw the same numbers. If the target accepts a node that a rank has not
computed, this rank computes the node's token as a pending token in the next step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from paceline.backend.plain_tensors import is_plain
from paceline.core.drafter import Drafter, Outcome
from paceline.core.node_logits import NodeLogits
from paceline.core.request import Request
from paceline.core.settings import PREFILL_CHUNK
from paceline.core.tree import DraftTree, IntArray
from paceline.engine.parallel.ranks import Ranks, check_columns
from paceline.engine.parallel.split import Share, share
from paceline.engine.settings import CHECKSUM_BLOCK
from paceline.errors import ConfigError, DrafterError, UnsupportedModelError
from paceline.model.cached_lm import CachedLM
from paceline.util.tensor_bits import as_integers
from paceline.verification.outcomes import make_outcome, token_chooser
from paceline.verification.rules import follow
from paceline.verification.verify import TargetTokens, target_tokens


class ParallelLM(CachedLM):
    """A model that verifies each draft tree jointly with other processes (ranks).

    `forward_nodes` returns the logits for the nodes that this rank computes; `verify` combines the
    results of all ranks. `Request.cached` and `Stats.query_tokens` count only the tokens that this
    rank has computed.

    Args:
        model: This rank's copy of the model, on this rank's device.
        ranks: The processes in the run.
        drafter: Drafter whose trees are verified.
        max_nodes: Maximum number of nodes in a tree.
        prefill_chunk: Maximum number of pending tokens in a forward pass, as in `CachedLM`. Values
            below 1 + `max_nodes` are raised to that number.
        options: The other arguments of `CachedLM`.

    Raises:
        ConfigError: The trees have fewer branches than there are ranks, or the ranks' options or
            weights differ.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        ranks: Ranks,
        drafter: Drafter,
        max_nodes: int,
        prefill_chunk: int = PREFILL_CHUNK,
        **options: Any,
    ) -> None:
        check_columns(drafter, ranks.size)
        # Recomputed tokens must fit in one forward pass, so that all ranks take the same steps.
        super().__init__(model, max(prefill_chunk, 1 + max_nodes), **options)
        if self.architecture.states:
            raise UnsupportedModelError(
                f"{self.architecture.name} has recurrent layers, whose states the ranks cannot"
                " exchange; expected a model whose layers are all attention. Run it in one process."
            )
        self.ranks = ranks
        self._max_nodes = max_nodes
        self._parts: dict[int, tuple[Share, DraftTree]] = {}  # from the last pass, by request id
        ranks.agree(
            "drafters",
            (drafter.name, drafter.columns, max_nodes),
            "Start every process with the same options.",
        )
        ranks.agree(
            "model weights",
            weight_sums(model),
            "Start every process with the same model and --dtype.",
        )

    def forward_nodes(
        self,
        requests: Sequence[Request],
        trees: Sequence[DraftTree],
        prefill_chunk: int | None = None,
        reduced_logits: bool = False,
        num_top: int = 0,
    ) -> NodeLogits:
        """Run the forward pass over the nodes of each tree that this rank computes.

        The arguments are those of `CachedLM.forward_nodes`.

        Raises:
            DrafterError: A tree has sampled nodes. To verify them, the ranks would have to exchange
                full distributions, but they exchange only tokens.
        """
        if any(tree.probs is not None for tree in trees):
            raise DrafterError(
                "a draft tree has sampled nodes, but lookahead parallelism supports only"
                " deterministic drafts. Choose a deterministic drafter, or run it in one"
                " process."
            )
        size, rank = self.ranks.size, self.ranks.rank
        # The shares rotate, so that the largest does not always go to the same rank.
        turns = [(rank + request.counters.target_forwards) % size for request in requests]
        shares = [
            share(tuple(tree.parents), size, turn) for tree, turn in zip(trees, turns, strict=True)
        ]
        parts = [own.part(tree) for own, tree in zip(shares, trees, strict=True)]
        self._parts = {
            request.id: both
            for request, both in zip(requests, zip(shares, parts, strict=True), strict=True)
        }
        return super().forward_nodes(requests, parts, prefill_chunk, reduced_logits, num_top)

    def commit(self, accepted: Sequence[Sequence[int]]) -> None:
        """Add the accepted nodes to the KV cache, if this rank has computed them.

        Args:
            accepted: Accepted nodes for each request, as indices into the whole trees.
        """
        own_shares = (own for own, _ in self._parts.values())
        super().commit(
            [own.path_indices(path) for own, path in zip(own_shares, accepted, strict=True)]
        )

    def verify(
        self, requests: Sequence[Request], trees: Sequence[DraftTree], logits: NodeLogits
    ) -> list[Outcome]:
        """Choose each request's new tokens, identically on all ranks; see `Verifier`.

        Args:
            requests: Requests in the last `forward_nodes` call that are ready to decode.
            trees: Whole draft tree of each request.
            logits: Logits of these requests, from the last `forward_nodes` call.
        Raises:
            DrafterError: The ranks have different trees.
            ParallelError: A process was lost.
        """
        if not requests:
            return []
        parts = [self._parts[request.id][1] for request in requests]
        target = target_tokens(requests, parts, logits)
        table = self._table(requests, trees, target)
        merged = self.ranks.merge(torch.from_numpy(table)).tolist()
        outcomes = []
        for request, tree, (token_row, argmax_row) in zip(requests, trees, merged, strict=True):
            if token_row[0] != -argmax_row[0]:
                raise DrafterError(
                    "the processes of this parallel run drafted different trees for request"
                    f" {request.id}; a drafter must propose the same trees in all of them. Run"
                    " this drafter in one process."
                )
            tokens = token_row[1 : 2 + len(tree)]
            tree_argmax = argmax_row[1 : 2 + len(tree)]
            accepted, run = follow(
                tree,
                token_chooser(request, tree, tokens, tree_argmax, logits.flat.dtype),
                request.end_reason,
            )
            outcomes.append(make_outcome(request, tree, accepted, run, tree_argmax))
        return outcomes

    def _table(
        self,
        requests: Sequence[Request],
        trees: Sequence[DraftTree],
        target: TargetTokens,
    ) -> IntArray:
        """Return this rank's results as a table, [batch, 2, 2 + max_nodes].

        For each request, row 0 contains the target's tokens, and row 1 the target's argmaxes.
        Column 0 contains a checksum of the tree, column 1 the value after the root, and the other
        columns the values after the nodes. Unknown values are -1. The shape is the same for all
        trees. Ranks with different trees can therefore still exchange tables, and detect the
        difference.
        """
        table = np.full((len(requests), 2, 2 + self._max_nodes), -1, dtype=np.int64)
        for row, (request, tree) in enumerate(zip(requests, trees, strict=True)):
            # The shift ensures that the negated value also fits into 64 bits.
            check = hash((len(request), request.token_ids[-1], *tree.token_ids, *tree.parents)) >> 1
            table[row, :, 0] = check, -check  # the two maxima cancel out only if all ranks agree
            own = self._parts[request.id][0]
            known = np.array([target.tokens[row], target.argmax[row]])
            table[row][:, 2 + own.nodes[own.owned]] = known[:, 1 + own.owned]
            if self.ranks.rank == 0:
                table[row, :, 1] = known[:, 0]
        return table

    def check_drafter(self, drafter: Drafter) -> None:
        """Reject a drafter whose trees cannot be divided among the ranks.

        Raises:
            ConfigError: The trees cannot be divided, or there are more ranks than branches.
        """
        check_columns(drafter, self.ranks.size)

    def check_requests(self, requests: Sequence[Request], max_batch: int | None) -> None:
        """Check that all ranks have the same requests.

        The engine calls this method once for each call of `Engine.submit`.

        Args:
            requests: Requests on this rank.
            max_batch: Maximum number of requests per forward pass; None means no limit.
        Raises:
            ConfigError: The ranks have different requests, or a request has an option, such as
                `logprobs`, that needs all logits in one process.
        """
        for name in ("bad_words", "logits_processors", "logprobs", "prompt_logprobs"):
            if any(getattr(request.params, name) not in ((), None) for request in requests):
                raise ConfigError(
                    f"{name}: got a value in a parallel run, which does not support this option."
                    " Leave it out, or use one process."
                )
        arguments = [
            (request.token_ids, request.params, request.max_length, sorted(request.eos_token_ids))
            for request in requests
        ]
        self.ranks.agree(
            "prompts or sampling parameters",
            (arguments, max_batch),
            "Make the same call in every process.",
        )


@torch.no_grad()
def weight_sums(model: PreTrainedModel) -> list[tuple[str, str, tuple[int, ...], int]]:
    """Return the name, dtype, shape and checksum of every parameter and buffer.

    Equal models have equal checksums on all devices. To compute the checksum, each element's bit
    pattern is read as an integer, and multiplied by an odd number that depends on the element's
    index. The checksum is the sum of the products modulo 2**64. Changing an element or swapping two
    elements changes the checksum, but the order of summation does not. Quantised weights that are
    not plain tensors have checksum 0.
    """
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [
        (
            name,
            f"{tensor.dtype} {type(tensor).__name__}",
            tuple(tensor.shape),
            _weighted_sum(tensor) if is_plain(tensor) else 0,
        )
        for name, tensor in tensors
    ]


def _weighted_sum(tensor: Tensor) -> int:
    flat = tensor.detach().reshape(-1)
    width = math.gcd(flat.nbytes, 8) or 8  # the widest integers that divide the tensor's bytes
    if flat.storage_offset() * flat.element_size() % width:
        flat = flat.clone()
    bits = as_integers(flat, width)
    odd = torch.arange(1, 2 * min(CHECKSUM_BLOCK, bits.numel()), 2, device=bits.device)
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for start in range(0, bits.numel(), CHECKSUM_BLOCK):
        block = bits[start : start + CHECKSUM_BLOCK]
        total += ((odd[: block.numel()] + 2 * start) * block).sum()
    return int(total)
