"""The class vLLM asks for drafts: a chain per row of its batch and step, out of a drafter's
trees.
"""

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

_STORE_EVERY = 5.0  # seconds between two looks at the size of the store


class Proposer:
    """What `speculative_config={"method": "custom_class", "model":
    "paceline.integrations.vllm.Proposer", ...}` names.

    Args:
        vllm_config: vLLM's `VllmConfig`; `additional_config["paceline"]` has our options
            (`ProposerOptions`).
    Raises:
        ConfigError: a model with recurrent layers, options that cannot be used, or a store of
            another tokenizer. Nothing is raised later.
    """

    def __init__(self, vllm_config: Any) -> None:
        refuse_recurrent(vllm_config)
        self._options, self._facts = read_options(vllm_config), read_facts(vllm_config)
        self._lock = threading.Lock()  # held in a step, and while requests are forgotten
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
        """Load nothing: there is no model."""

    def dummy_run(self, *_: Any, **__: Any) -> None:
        """Run nothing: there is no model."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Any,
        token_ids_cpu: Any,
        *_: Any,
        **__: Any,
    ) -> list[list[int]]:
        """Draft for every row of a batch. Nothing is ever raised: what goes wrong is an empty
        draft.

        Args:
            sampled_token_ids: per row its new tokens; none while its prompt is being computed.
            num_tokens_no_spec: [rows or more] tokens of each row, the new ones included.
            token_ids_cpu: [rows or more, max_model_len] these tokens.
        Returns:
            per row at most `num_speculative_tokens` ids.
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
                drafts[row.place] = tokens
            self._meter.requests.set(len(self._drafting))

    def _build(self) -> None:
        """Make the drafter, unless there is one already, or it could not be made a moment ago.

        Raises:
            as `Builder.build`.
        """
        drafter = None if self._drafting is not None else self._builder.build()
        if drafter is not None:
            guarded = GuardedDrafter(drafter, self._facts.vocab_size, self._faults)
            self._drafting = RowDrafting(
                guarded, self._facts, self._meter, self._options.length == "full"
            )
            self._drafting.warm_up()

    def _forget(self) -> None:
        """Count all requests as finished."""
        if self._drafting is not None:
            self._drafting.forget()
            self._meter.requests.set(len(self._drafting))

    def _watch(self) -> None:
        """Run as the thread: what vLLM asks for no more has finished; and see how large the
        store is.
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
                store_at = now + _STORE_EVERY
                try:
                    self._meter.store.set(self._builder.store_tokens())
                except Exception as error:
                    self._faults.report("datastore", error)


def _rows(sampled: Sequence[Sequence[int]], sizes: Any, token_ids: Any) -> list[BatchRow]:
    return [
        BatchRow(place, token_ids[place, : int(sizes[place])], len(new))
        for place, new in enumerate(sampled)
        if len(new)
    ]
