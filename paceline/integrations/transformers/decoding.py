"""One call of `generate`, decoded by the steps all decoding is made of, returned as transformers
returns it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from transformers import DynamicCache
from transformers.generation import GenerateDecoderOnlyOutput

from paceline.core.drafter import Outcome
from paceline.core.metrics import Stats
from paceline.core.not_numbers import NO_TOKEN, take_token
from paceline.core.request import Request
from paceline.core.tree import DraftTree
from paceline.cpu.topk import most_likely
from paceline.engine.engine import Engine
from paceline.integrations.transformers.cache import fill_cache, load_cache
from paceline.integrations.transformers.request import GenerateCall
from paceline.integrations.transformers.rows import RowRequest, SharedNoise
from paceline.model.forward_arguments import GENERATE_CACHE
from paceline.model.node_logits import NodeLogits
from paceline.verification.verify import follow, make_outcome, spoiled


def verify_rows(
    rows: Sequence[Request], trees: Sequence[DraftTree], logits: NodeLogits
) -> list[Outcome]:
    """Follow the tokens transformers would choose; the engine's rule of verification for rows of a
    transformers batch.

    Args:
        rows: `RowRequest`s.
    """
    argmax: list[int] = most_likely(logits.flat).tolist()
    outcomes = []
    for start, row, tree in zip(
        logits.starts, cast(Sequence[RowRequest], rows), trees, strict=True
    ):

        def choose(
            node: int, root: int = start, row: RowRequest = row, tree: DraftTree = tree
        ) -> int:
            if spoiled(tree, argmax, root + node):
                return NO_TOKEN
            return take_token(
                row,
                row.choose(logits.flat[root + node + 1], argmax[root + node + 1]),
                logits.flat.dtype,
            )

        accepted, run = follow(tree, choose, row.end_reason)
        outcomes.append(
            make_outcome(row, tree, accepted, run, argmax[start : start + 1 + len(tree)])
        )
    return outcomes


class Decoding:
    """One call: its rows from the first forward to the result."""

    def __init__(self, engine: Engine, request: GenerateCall, streamer: Any) -> None:
        self.stats: list[Stats] = []
        self._engine = engine
        self._model = engine.model
        self._request = request
        self._streamer = streamer
        self._streamed = request.width  # columns the streamer has seen
        self._noise = SharedNoise(request.batch, request.input_ids.device)
        self._rows = [RowRequest(request, place, self._noise) for place in range(request.batch)]

    def run(self) -> Any:
        """Decode; whatever happens, slots and drafter state are free afterwards."""
        request = self._request
        handles = self._engine.submit(self._rows, keep_slots=True)
        try:
            self._engine.admit()
            if request.past and not self._starts_anew(request.width):
                load_cache(self._model, self._rows, request.cache, request.past)
            going = list(zip(handles, self._rows, strict=True))
            while going:
                self._engine.advance(handles)
                for handle, row in going:
                    if handle.done:
                        self._noise.leave(row.place)
                going = [(handle, row) for handle, row in going if not handle.done]
                self._stream()
            self.stats = [handle.stats() for handle in handles]
            total = max(row.width for row in self._rows)
            if request.keep_scores or request.keep_logits or request.cache is not None:
                self._run_on(total)
            return self._result(total)
        finally:
            self._engine.withdraw(handles)

    def _stream(self) -> None:
        """Give the streamer the columns that are complete: [batch] token ids each, as
        transformers does.
        """
        if self._streamer is None:
            return
        going = [row.width for row in self._rows if row.finish_reason is None]
        complete = min(going) if going else max(row.width for row in self._rows)
        while self._streamed < complete:
            tokens = [self._token(row, self._streamed) for row in self._rows]
            self._streamed += 1
            self._streamer.put(torch.tensor(tokens))

    def _token(self, row: RowRequest, column: int) -> int:
        return row.token_ids[column - row.padding] if column < row.width else self._pad

    @property
    def _pad(self) -> int:
        pad = self._request.pad_token_id
        assert pad is not None, (
            "rows of different length without a padding token"
        )  # Request refuses them
        return pad

    def _run_on(self, total: int) -> None:
        """Feed the padding behind rows that ended early: transformers does, and returns its
        scores and states too.
        """
        short = [row for row in self._rows if row.width < total]
        if not short:
            return
        for row in short:
            self._model.rewind(row, len(row) - 1)
        short.sort(key=lambda row: row.slot)
        trees = [DraftTree.chain([self._pad] * (total - row.width - 1)) for row in short]
        logits = self._model.forward(short, trees)
        for row, tree, mine in zip(short, trees, logits, strict=True):
            for node in range(len(tree) + 1):
                row.process(mine[node])
                row.fill(self._pad)
        self._model.commit([range(len(tree)) for tree in trees])

    def _result(self, total: int) -> Any:
        request = self._request
        columns = range(request.width, total)
        new = torch.tensor([[self._token(row, column) for column in columns] for row in self._rows])
        ids = torch.cat([request.input_ids, new.to(request.input_ids.device)], dim=-1)
        cache, past = request.cache, request.past
        if cache is not None:
            if self._starts_anew(total - 1):
                cache, past = DynamicCache(config=self._model.model.config), 0
            fill_cache(self._model, self._rows, cache, past, total - 1)
        if not request.as_dict:
            return ids
        scores, logits = (
            tuple(torch.cat(rows) for rows in zip(*each, strict=True))
            for each in ([row.scores for row in self._rows], [row.logits for row in self._rows])
        )
        return GenerateDecoderOnlyOutput(
            sequences=ids,
            scores=scores if request.keep_scores else None,
            logits=logits if request.keep_logits else None,
            **{GENERATE_CACHE: cache},
        )

    def _starts_anew(self, fed: int) -> bool:
        """Whether the model drops the cache it was given to feed so many columns, with other
        rotary frequencies.
        """
        switch = self._model.architecture.restart_length
        return switch is not None and self._request.past <= switch < fed
