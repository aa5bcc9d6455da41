"""Implement the class that vLLM calls for drafts."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from paceline.errors import DatastoreError
from paceline.integrations.vllm.building import Builder
from paceline.integrations.vllm.drafting import RowDrafting
from paceline.integrations.vllm.guarded import Faults, GuardedDrafter
from paceline.integrations.vllm.metrics import DraftingMetrics
from paceline.integrations.vllm.options import read_facts, read_options, refuse_recurrent
from paceline.integrations.vllm.requests import BatchRow
from paceline.integrations.vllm.settings import ProposerSettings

_SETTINGS = ProposerSettings()


class Proposer:
    """Drafts tokens for vLLM.

    To use this class, name it as the `model` of the method "custom_class" in vLLM's speculative
    configuration.

    Args:
        vllm_config: vLLM's `VllmConfig`; `additional_config["paceline"]` contains the values of
            `ProposerOptions`.
    Raises:
        ConfigError: The model has recurrent layers, an option is invalid, or the datastore was
            built with a different tokenizer. Later calls never raise.
    """

    def __init__(self, vllm_config: Any) -> None:
        refuse_recurrent(vllm_config)
        self._options, self._facts = read_options(vllm_config), read_facts(vllm_config)
        self._lock = threading.Lock()  # held during a step and while requests are dropped
        self._drafting: RowDrafting | None = None
        self._used_at = 0.0
        if self._facts.leads:
            self._meter = DraftingMetrics(self._facts.model)
            self._faults = Faults(self._meter.failures.inc)
            self._builder = Builder(self._options.drafter, self._facts)
            try:
                self._build()
            except DatastoreError as error:
                self._faults.report("datastore", error)
            threading.Thread(target=self._watch, name="paceline vllm", daemon=True).start()

    def load_model(self, *_: Any, **__: Any) -> None:
        """Do nothing, because there is no draft model."""

    def dummy_run(self, *_: Any, **__: Any) -> None:
        """Do nothing, because there is no draft model."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Any,
        token_ids_cpu: Any,
        *_: Any,
        **__: Any,
    ) -> list[list[int]]:
        """Draft tokens for every row of a batch; if an error occurs, return empty drafts.

        Args:
            sampled_token_ids: New tokens of each row; empty for a row whose prompt is still being
                computed.
            num_tokens_no_spec: Number of tokens in each row, including new tokens, [rows or more].
            token_ids_cpu: Token ids of the rows, [rows or more, max_model_len].
        Returns:
            At most `num_speculative_tokens` token ids per row.
        """
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        if not self._facts.leads:
            return drafts
        begin = time.perf_counter()
        with self._lock:
            try:
                self._fill(
                    drafts, _rows(sampled_token_ids, num_tokens_no_spec, token_ids_cpu), begin
                )
            except Exception as error:
                self._faults.report("proposer", error)
                self._forget()
            self._used_at = time.perf_counter()
            self._meter.seconds.observe(self._used_at - begin)
            if self._drafting is not None:
                self._drafting.done(self._used_at)
        return drafts

    def _fill(self, drafts: list[list[int]], rows: list[BatchRow], begin: float) -> None:
        self._build()
        if self._drafting is not None:
            for row, tokens in zip(
                rows, self._drafting.step(rows, len(drafts) - len(rows), begin), strict=True
            ):
                drafts[row.index] = tokens
            self._meter.requests.set(len(self._drafting))

    def _build(self) -> None:
        """Create the drafter unless it exists or an attempt failed recently.

        Raises:
            ConfigError: The drafter cannot be created or does not match the engine.
            DatastoreError: The datastore cannot be read.
        """
        drafter = None if self._drafting is not None else self._builder.build()
        if drafter is not None:
            guarded = GuardedDrafter(drafter, self._facts.vocab_size, self._faults)
            self._drafting = RowDrafting(
                guarded, self._facts, self._meter, self._options.length == "full"
            )
            self._drafting.warm_up()

    def _forget(self) -> None:
        """Treat all requests as finished."""
        if self._drafting is not None:
            self._drafting.forget()
            self._meter.requests.set(len(self._drafting))

    def _watch(self) -> None:
        """Drop idle requests, and report the datastore's size, until the process ends.

        This loop runs in a separate thread.
        """
        store_at = 0.0
        while True:
            time.sleep(self._options.idle / 2)
            now = time.perf_counter()
            with self._lock:
                if (
                    self._drafting is not None
                    and len(self._drafting)
                    and now - self._used_at > self._options.idle
                ):
                    self._forget()
            if now >= store_at:
                store_at = now + _SETTINGS.store_seconds
                try:
                    self._meter.store.set(self._builder.store_tokens())
                except Exception as error:
                    self._faults.report("datastore", error)


def _rows(sampled: Sequence[Sequence[int]], sizes: Any, token_ids: Any) -> list[BatchRow]:
    return [
        BatchRow(index, token_ids[index, : int(sizes[index])], len(new))
        for index, new in enumerate(sampled)
        if len(new)
    ]
