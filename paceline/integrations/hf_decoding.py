"""One call of `generate`, decoded by the steps all decoding is made of, returned as transformers returns it."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from typing import Any, cast

import torch
from torch import Tensor
from transformers.generation import GenerateDecoderOnlyOutput

from paceline.drafter import Drafter, Outcome
from paceline.integrations.hf_cache import fill_cache, load_cache
from paceline.integrations.hf_request import Request
from paceline.integrations.hf_rows import Row, SharedNoise
from paceline.metrics import Stats
from paceline.model import CachedLM
from paceline.sequence import Sequence
from paceline.step import decode_step
from paceline.tree import DraftTree
from paceline.verify import follow

_MAX_NODES = 256
_ROOM = 512  # cache positions allocated beyond the prompt before they are needed; doubled each time


class Decoding:
    """One call: its rows from the first forward to the result."""

    def __init__(self, model: CachedLM, drafter: Drafter, request: Request, streamer: Any) -> None:
        self.stats: list[Stats] = []
        self._model = model
        self._drafter = drafter
        self._request = request
        self._streamer = streamer
        self._streamed = request.width  # columns the streamer has seen
        self._noise = SharedNoise(request.batch, request.input_ids.device)
        self._rows = [Row(request, place, self._noise) for place in range(request.batch)]
        self._drafting: list[Row] = []
        self._room = 0

    def run(self) -> Any:
        """Decode; whatever happens, slots and drafter state are free afterwards."""
        request, start = self._request, time.perf_counter()
        try:
            self._open()
            active = list(self._rows)
            while active:
                self._step(active)
                for row in [row for row in active if row.finish_reason is not None]:
                    active.remove(row)
                    self._noise.leave(row.place)
                    self._stop(row)
                self._stream()
            self.stats = [Stats.of(row, time.perf_counter() - start) for row in self._rows]
            total = max(row.width for row in self._rows)
            if request.keep_scores or request.keep_logits or request.cache is not None:
                self._run_on(total)
            return self._result(total)
        finally:
            self._close()

    def _open(self) -> None:
        self._make_room()
        for row in self._rows:
            self._model.open(row)
        if self._request.past:
            load_cache(self._model, self._rows, self._request.cache, self._request.past)
        for row in self._rows:
            self._drafting.append(row)
            self._drafter.start(row)

    def _close(self) -> None:
        try:
            for row in list(self._drafting):
                self._stop(row)
        finally:
            for row in self._rows:
                self._model.close(row)

    def _stop(self, row: Row) -> None:
        self._drafting.remove(row)
        self._drafter.stop(row)

    def _make_room(self) -> None:
        """Allocate what the answers so far need and some more, so that growing is rare and early ends cost little memory."""
        longest = max(len(row) for row in self._rows)
        if longest + _MAX_NODES > self._room:
            self._room = max(longest + _MAX_NODES + _ROOM, 2 * self._room)
            needed = max(row.max_length for row in self._rows) + _MAX_NODES
            self._model.reserve(len(self._rows), min(self._room, needed))

    def _step(self, active: list[Row]) -> None:
        """One forward. Prompts longer than a prefill chunk go first, alone, so that nothing is padded to a chunk's length."""
        self._make_room()
        active.sort(key=lambda row: row.slot)
        group = [row for row in active if not self._model.reaches_end(row)] or active
        decode_step(self._model, self._drafter, group, [_MAX_NODES] * len(group), self._verify)

    def _verify(self, seqs: Seq[Sequence], trees: Seq[DraftTree], logits: Tensor) -> list[Outcome]:
        """Follow the tokens transformers would choose; logits [rows, 1 + nodes, vocab]."""
        argmax: list[list[int]] = logits.argmax(-1).tolist()
        outcomes = []
        for place, (row, tree) in enumerate(zip(cast(Seq[Row], seqs), trees, strict=True)):

            def choose(node: int, place: int = place, row: Row = row) -> int:
                return row.choose(logits[place, node + 1], argmax[place][node + 1])

            accepted, run = follow(tree, choose, row.end_reason)
            outcomes.append(Outcome(row, tree, accepted, run, argmax[place][: 1 + len(tree)]))
        return outcomes

    def _stream(self) -> None:
        """Give the streamer the columns that are complete: [batch] token ids each, as transformers does."""
        if self._streamer is None:
            return
        going = [row.width for row in self._rows if row.finish_reason is None]
        complete = min(going) if going else max(row.width for row in self._rows)
        while self._streamed < complete:
            tokens = [self._token(row, self._streamed) for row in self._rows]
            self._streamed += 1
            self._streamer.put(torch.tensor(tokens))

    def _token(self, row: Row, column: int) -> int:
        return row.token_ids[column - row.padding] if column < row.width else self._pad

    @property
    def _pad(self) -> int:
        pad = self._request.pad_token_id
        assert pad is not None, "rows of different length without a padding token"  # Request refuses them
        return pad

    def _run_on(self, total: int) -> None:
        """Feed the padding behind rows that ended early: transformers does, and returns its scores and states too."""
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
        if request.cache is not None:
            fill_cache(self._model, self._rows, request.cache, request.past, total - 1)
        if not request.as_dict:
            return ids
        scores, logits = (tuple(torch.cat(rows) for rows in zip(*each, strict=True)) for each in
                          ([row.scores for row in self._rows], [row.logits for row in self._rows]))  # fmt: skip
        return GenerateDecoderOnlyOutput(
            sequences=ids,
            scores=scores if request.keep_scores else None,
            logits=logits if request.keep_logits else None,
            past_key_values=request.cache,
        )
