"""Decode one `generate` call, and return the result in transformers' format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from transformers import DynamicCache
from transformers.generation import GenerateDecoderOnlyOutput

from paceline.core.drafter import Outcome
from paceline.core.metrics import Stats
from paceline.core.node_logits import NodeLogits
from paceline.core.not_numbers import NO_TOKEN, take_token
from paceline.core.request import Request
from paceline.core.tree import DraftTree
from paceline.engine.engine import Engine
from paceline.errors import UnsupportedModelError
from paceline.integrations.transformers.cache import fill_cache, load_cache
from paceline.integrations.transformers.media import attach_media
from paceline.integrations.transformers.request import GenerateCall
from paceline.integrations.transformers.rows import RowRequest, SharedNoise
from paceline.model.cached_lm import CachedLM
from paceline.model.forward_arguments import GENERATE_CACHE
from paceline.model.transformers_target import as_cached_lm
from paceline.verification.outcomes import draft_may_cause_nan, make_outcome
from paceline.verification.rules import follow
from paceline.verification.verify import best_tokens, split_top_tokens


def verify_rows(
    rows: Sequence[Request], trees: Sequence[DraftTree], logits: NodeLogits
) -> list[Outcome]:
    """Choose tokens as transformers would, and accept the draft tokens that match.

    This verification rule is called sample matching. The engine applies it to the rows of a
    transformers batch.

    Args:
        rows: Rows of the batch, which are instances of `RowRequest`.
        trees: Draft tree of each row.
        logits: The target's logits after the root and after every node of each tree.
    Returns:
        The accepted nodes and the new tokens of each row.
    """
    best, top = best_tokens(logits)
    tops = split_top_tokens(logits, top)
    outcomes = []
    for start, row, tree, argmax, row_top in zip(
        logits.starts, cast(Sequence[RowRequest], rows), trees, best, tops, strict=True
    ):

        def choose(
            node: int,
            root: int = start,
            row: RowRequest = row,
            tree: DraftTree = tree,
            argmax: list[int] = argmax,
        ) -> int:
            if draft_may_cause_nan(tree, argmax, node):
                return NO_TOKEN
            return take_token(
                row,
                row.choose(logits.flat[root + node + 1], argmax[node + 1]),
                logits.flat.dtype,
            )

        accepted, run = follow(tree, choose, row.end_reason)
        outcomes.append(make_outcome(row, tree, accepted, run, argmax[: 1 + len(tree)], row_top))
    return outcomes


def _without_states(request: GenerateCall, model: CachedLM) -> GenerateCall:
    """Remove the cache of a model with recurrent states, if transformers created it.

    Raises:
        UnsupportedModelError: The model has recurrent states, and the cache is the caller's own.
    """
    if request.cache is None or not model.keeps_states:
        return request
    if request.past or getattr(request.cache, "_is_user_defined", False):
        raise UnsupportedModelError(
            f"{GENERATE_CACHE}: got a cache for {model.architecture.name}, whose recurrent"
            " states cannot be copied from or to a cache; expected None. Leave it out."
        )
    return replace(request, cache=None)


class Decoding:
    """Runs one `generate` call, from the first forward pass to the result.

    Args:
        engine: Engine that runs the model.
        request: Validated arguments of the call.
        streamer: transformers streamer that receives the tokens, or None.
    """

    def __init__(self, engine: Engine, request: GenerateCall, streamer: Any) -> None:
        self.stats: list[Stats] = []
        self._engine = engine
        self._model = as_cached_lm(engine.model)
        self._request = request = _without_states(request, self._model)
        self._streamer = streamer
        self._streamed = request.width  # columns passed to the streamer
        self._noise = SharedNoise(request.batch, request.input_ids.device)
        self._rows = [RowRequest(request, index, self._noise) for index in range(request.batch)]

    def run(self) -> Any:
        """Decode all rows, and return the result in transformers' format.

        The slots and the drafter's state are freed at the end, even after an error.
        """
        request = self._request
        if request.media is not None:
            attach_media(self._model, request, self._rows)
        handles = self._engine.submit(self._rows, keep_slots=True)
        try:
            self._engine.admit()
            if request.past and not self._restarts(request.width):
                load_cache(self._model, self._rows, request.cache, request.past)
            active = list(zip(handles, self._rows, strict=True))
            while active:
                self._engine.advance(handles)
                for handle, row in active:
                    if handle.done:
                        self._noise.leave(row.place)
                active = [(handle, row) for handle, row in active if not handle.done]
                self._stream()
            self.stats = [handle.stats() for handle in handles]
            total = max(row.width for row in self._rows)
            if request.keep_scores or request.keep_logits or request.cache is not None:
                self._extend_short_rows(total)
            return self._result(total)
        finally:
            self._engine.withdraw(handles)

    def _stream(self) -> None:
        """Pass each column to the streamer once all unfinished rows have reached it.

        A column consists of one token id per row, [batch].
        """
        if self._streamer is None:
            return
        active_widths = [row.width for row in self._rows if row.finish_reason is None]
        complete = min(active_widths) if active_widths else max(row.width for row in self._rows)
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
        )  # `GenerateCall.of` rejects them
        return pad

    def _extend_short_rows(self, total: int) -> None:
        """Run the model on the padding tokens of rows that ended early.

        transformers also processes these tokens, and returns their scores, keys and values.
        """
        short = [row for row in self._rows if row.width < total]
        if not short:
            return
        for row in short:
            self._model.undo(row, len(row) - 1)
        short.sort(key=lambda row: row.slot)
        trees = [DraftTree.chain([self._pad] * (total - row.width - 1)) for row in short]
        logits = self._model.forward(short, trees)
        for row, tree, row_logits in zip(short, trees, logits, strict=True):
            for node in range(len(tree) + 1):
                row.process(row_logits[node])
                row.fill(self._pad)
        self._model.commit([range(len(tree)) for tree in trees])

    def _result(self, total: int) -> Any:
        request = self._request
        columns = range(request.width, total)
        new = torch.tensor([[self._token(row, column) for column in columns] for row in self._rows])
        ids = torch.cat([request.input_ids, new.to(request.input_ids.device)], dim=-1)
        cache, past = request.cache, request.past
        if cache is not None:
            if self._restarts(total - 1):
                cache, past = DynamicCache(config=self._model.model.config), 0
            fill_cache(self._model, self._rows, cache, past, total - 1)
        if not request.as_dict:
            return ids
        scores, logits = (
            tuple(torch.cat(rows) for rows in zip(*step_tensors, strict=True))
            for step_tensors in (
                [row.scores for row in self._rows],
                [row.logits for row in self._rows],
            )
        )
        return GenerateDecoderOnlyOutput(
            sequences=ids,
            scores=scores if request.keep_scores else None,
            logits=logits if request.keep_logits else None,
            **{GENERATE_CACHE: cache},
        )

    def _restarts(self, num_columns: int) -> bool:
        """Return whether the model drops its cache before reaching this many columns.

        Some models switch their rotary frequencies at a certain text length. At this length, they
        drop the cache and recompute the whole text.
        """
        switch = self._model.architecture.restart_length
        return switch is not None and self._request.past <= switch < num_columns
