"""Lookahead parallelism: several processes, each with a whole copy of the model, compute one step's
draft tree together.

After Fu et al. 2024, "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding",
section 3.4. Every rank runs the same loop and proposes the same trees, feeds only its share of the
nodes, and one exchange of integers tells all ranks the target's token and arg-max after every node.
Draws are keyed by seed and position, so they do not depend on who makes them. A rank that has not
fed an accepted node feeds its token in front of the next step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from paceline.backend.plain_tensors import is_plain
from paceline.backend.products import Products
from paceline.core.drafter import Drafter, Outcome
from paceline.core.node_logits import NodeLogits
from paceline.core.request import Request
from paceline.core.settings import PREFILL_CHUNK
from paceline.core.tree import DraftTree, IntArray
from paceline.engine.parallel.ranks import Ranks, check_columns
from paceline.engine.parallel.split import Share, share
from paceline.errors import ConfigError, DrafterError
from paceline.model.cached_lm import CachedLM
from paceline.verification.outcomes import make_outcome, token_chooser
from paceline.verification.rules import follow
from paceline.verification.verify import target_tokens

_PIECE = 1 << 18  # integers summed at once, to bound the memory it takes
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by width in bytes


class ParallelLM(CachedLM):
    """A model whose draft trees are computed by all ranks together; `verify` belongs to its
    `forward_nodes`.

    Logits of `forward` are those of this rank's share only, `request.cached` is this rank's own,
    and so is `stats.query_tokens`.

    Args:
        model: this rank's copy, on its own device.
        drafter: whose trees are going to be verified; max_nodes: most nodes of one.
        prefill_chunk, batch_invariant, min_rows, products, chains: as for `CachedLM`.
    Raises:
        ConfigError: trees that cannot be split so far, or ranks with different options or weights.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        ranks: Ranks,
        drafter: Drafter,
        max_nodes: int,
        prefill_chunk: int = PREFILL_CHUNK,
        batch_invariant: bool = False,
        min_rows: int = 1,
        products: Products | None = None,
        chains: bool = False,
    ) -> None:
        check_columns(drafter, ranks.size)
        # Tokens fed again must fit one forward on every rank, or the ranks would part ways.
        chunk = max(prefill_chunk, 1 + max_nodes)
        super().__init__(model, chunk, batch_invariant, min_rows, products, chains=chains)
        self.ranks = ranks
        self._max_nodes = max_nodes
        self._parts: dict[int, tuple[Share, DraftTree]] = {}  # of the last forward, by sequence
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
    ) -> NodeLogits:
        """Run `CachedLM.forward_nodes` over this rank's share of every tree.

        Raises:
            DrafterError: a tree with drawn nodes, whose verification needs distributions and not
                tokens alone.
        """
        if any(tree.probs is not None for tree in trees):
            raise DrafterError(
                "a draft tree carries the distributions its nodes were drawn from; lookahead"
                " parallelism verifies guesses only. Choose a drafter of guesses, or run it in one"
                " process."
            )
        size, rank = self.ranks.size, self.ranks.rank
        # Shares take turns, so that the largest is not always the same rank's.
        turns = [(rank + request.counters.target_forwards) % size for request in requests]
        shares = [
            share(tuple(tree.parents), size, turn) for tree, turn in zip(trees, turns, strict=True)
        ]
        parts = [mine.part(tree) for mine, tree in zip(shares, trees, strict=True)]
        self._parts = {
            request.id: both
            for request, both in zip(requests, zip(shares, parts, strict=True), strict=True)
        }
        return super().forward_nodes(requests, parts, prefill_chunk, reduced_logits)

    def commit(self, accepted: Sequence[Sequence[int]]) -> None:
        """Run `CachedLM.commit` with nodes of the whole trees: keep what this rank has of each
        path.
        """
        super().commit(
            [
                mine.kept(path)
                for (mine, _), path in zip(self._parts.values(), accepted, strict=True)
            ]
        )

    def verify(
        self, requests: Sequence[Request], trees: Sequence[DraftTree], logits: NodeLogits
    ) -> list[Outcome]:
        """What is emitted for each sequence, alike on all ranks; the `Verifier` of `decode_step`.

        Args:
            logits: of the last `forward_nodes`, the rows of `requests`.
        Raises:
            DrafterError: the ranks' trees are not the same. ParallelError: a process was lost.
        """
        if not requests:
            return []
        parts = [self._parts[request.id][1] for request in requests]
        _, drawn, argmax = target_tokens(requests, parts, logits)
        merged = self.ranks.merge(
            torch.from_numpy(self._table(requests, trees, drawn, argmax))
        ).tolist()
        outcomes = []
        for request, tree, (token_row, argmax_row) in zip(requests, trees, merged, strict=True):
            if token_row[0] != -argmax_row[0]:
                raise DrafterError(
                    "the processes of this parallel run drafted different trees for sequence"
                    f" {request.id}; a drafter must guess alike in all of them. Run this drafter in"
                    " one process."
                )
            tokens = token_row[1 : 2 + len(tree)]
            said = argmax_row[1 : 2 + len(tree)]
            accepted, run = follow(
                tree,
                token_chooser(request, tree, tokens, said, logits.flat.dtype),
                request.end_reason,
            )
            outcomes.append(make_outcome(request, tree, accepted, run, said))
        return outcomes

    def _table(
        self,
        requests: Sequence[Request],
        trees: Sequence[DraftTree],
        drawn: list[list[int]],
        argmax: list[list[int]],
    ) -> IntArray:
        """What this rank knows, [batch, 2, 2 + max_nodes], -1 elsewhere: a check of the tree, then
        the root's and the nodes' tokens (row 0) and arg-maxes (row 1). Its shape does not depend on
        the trees, so that unequal ones can be reported.
        """
        table = np.full((len(requests), 2, 2 + self._max_nodes), -1, dtype=np.int64)
        for row, (request, tree) in enumerate(zip(requests, trees, strict=True)):
            # its negative fits, too
            check = hash((len(request), request.token_ids[-1], *tree.token_ids, *tree.parents)) >> 1
            table[row, :, 0] = check, -check  # the largest of both cancel out only if all are equal
            mine = self._parts[request.id][0]
            known = np.array([drawn[row], argmax[row]])
            table[row][:, 2 + mine.nodes[mine.owned]] = known[:, 1 + mine.owned]
            if self.ranks.rank == 0:
                table[row, :, 1] = known[:, 0]
        return table

    def check_drafter(self, drafter: Drafter) -> None:
        """Refuse a drafter whose trees cannot be split among the ranks.

        Raises:
            ConfigError: as `check_columns`.
        """
        check_columns(drafter, self.ranks.size)

    def check_requests(self, requests: Sequence[Request], max_batch: int | None) -> None:
        """Hold the requests of all ranks against each other, once per call of the engine.

        Raises:
            ConfigError: they differ, or ask for what takes the logits of a whole tree in one
                process.
        """
        for name in ("bad_words", "logits_processors", "logprobs", "prompt_logprobs"):
            if any(getattr(request.params, name) not in ((), None) for request in requests):
                raise ConfigError(
                    f"{name}: got some in a parallel run; expected none there. Leave it out, or"
                    " use one process."
                )
        asked = [
            (request.token_ids, request.params, request.max_length, sorted(request.eos_token_ids))
            for request in requests
        ]
        self.ranks.agree(
            "prompts or sampling parameters",
            (asked, max_batch),
            "Make the same call in every process.",
        )


@torch.no_grad()
def weight_sums(model: PreTrainedModel) -> list[tuple[str, str, tuple[int, ...], int]]:
    """Name, dtype, shape and sum of every parameter and buffer: equal for equal models, wherever
    they are.

    Sums are of the bit patterns as integers, each weighted with an odd number that depends on its
    place, modulo 2**64: the order of summation does not matter, and neither one changed element nor
    an exchange of two passes unnoticed. Quantised weights whose numbers have no place in memory
    count by name, class and shape alone.
    """
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [
        (
            name,
            f"{one.dtype} {type(one).__name__}",
            tuple(one.shape),
            _weighted_sum(one) if is_plain(one) else 0,
        )
        for name, one in tensors
    ]


def _weighted_sum(tensor: Tensor) -> int:
    flat = tensor.detach().reshape(-1)
    width = math.gcd(flat.nbytes, 8) or 8  # read as the widest integers that fit, for speed
    if flat.storage_offset() * flat.element_size() % width:
        flat = flat.clone()
    bits = flat.view(_INTEGERS[width])
    odd = torch.arange(1, 2 * min(_PIECE, bits.numel()), 2, device=bits.device)
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for start in range(0, bits.numel(), _PIECE):
        piece = bits[start : start + _PIECE]
        total += ((odd[: piece.numel()] + 2 * start) * piece).sum()
    return int(total)
