"""Define the methods that a benchmark compares: drafters and transformers.

All methods use the same loaded model.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import transformers
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel

from paceline.bench.bench_settings import MAX_BATCH_TOKENS, PAGE_POSITIONS
from paceline.bench.settings import ASSISTANT, PLAIN, lookup_tokens
from paceline.bench.timed_calls import Guarantee
from paceline.core.delegating_drafter import DelegatingDrafter
from paceline.core.drafter import Drafter, Outcome
from paceline.core.metrics import Stats, Timing
from paceline.core.sampling_params import SamplingParams
from paceline.llm import LLM


@dataclass(frozen=True, slots=True)
class MethodAnswer:
    """The tokens of an answer, with any end-of-sequence token, and its statistics."""

    token_ids: list[int]
    stats: Stats | None = None


class Method(Protocol):
    """A method of answering prompts.

    Only the function that `prepare` returns is timed.
    """

    name: str

    def reset(self) -> None:
        """Discard all state learned from earlier prompts."""

    def prepare(self, prompts: list[list[int]], max_new_tokens: int) -> Callable[[], Any]:
        """Prepare the input, and return the function to be timed.

        Args:
            prompts: Token ids of each prompt.
            max_new_tokens: Maximum number of tokens per answer.
        """

    def collect(self, raw: Any, prompts: list[list[int]]) -> list[MethodAnswer]:
        """Extract the answers from the result of the timed function.

        Args:
            raw: Value that the timed function returned.
            prompts: Token ids of each prompt.
        """

    def timing(self) -> Timing | None:
        """Return the engine's total time per phase so far; None if unknown."""


class Paceline:
    """Answers prompts with `LLM.generate` and one drafter."""

    def __init__(
        self, name: str, llm: LLM, make: Callable[[], Drafter], params: SamplingParams
    ) -> None:
        self.name = name
        self.draws = False  # whether the drafter samples its tokens, so that sampled texts differ
        self._llm, self._make, self._params = llm, make, params

    @property
    def guarantee(self) -> Guarantee:
        """Return whether answers equal those of plain decoding bit for bit, and why."""
        return Guarantee(self._llm.invariance.on, self._llm.invariance.reason)

    def reset(self) -> None:
        """Replace the drafter with a new one, and prepare the engine for measurements.

        The method also fits the drafter's draft head, and checks a cost curve loaded from disk.
        """
        self._llm.change_drafter(self._make())
        self._llm.finish_draft_head()
        self._llm.check_loaded_costs()

    def prepare(self, prompts: list[list[int]], max_new_tokens: int) -> Callable[[], Any]:
        """Return a function that calls `LLM.generate`."""
        params = _with_length(self._params, max_new_tokens)
        return lambda: self._llm.generate(prompts, params)

    def collect(self, raw: Any, prompts: list[list[int]]) -> list[MethodAnswer]:
        """Return the tokens and statistics of the completions."""
        return [MethodAnswer(completion.token_ids, completion.stats) for completion in raw]

    def timing(self) -> Timing | None:
        """Return the engine's time per phase; None unless the model runs on a CPU."""
        return self._llm.timing if self._llm.model.device.type == "cpu" else None

    def watch(self, prompts: list[list[int]], max_new_tokens: int) -> None:
        """Answer prompts without timing, and record whether the drafter samples tokens."""
        outcomes: list[Outcome] = []
        self._llm.change_drafter(ObservedDrafter(self._llm.drafter, outcomes.append))
        self.prepare(prompts, max_new_tokens)()
        self.draws = any(outcome.tree.probs is not None for outcome in outcomes)


class Transformers:
    """Answers with `model.generate`: plain, with prompt lookup, or with an assistant."""

    def __init__(
        self,
        name: str,
        model: PreTrainedModel,
        draft: PreTrainedModel | None,
        eos: list[int],
        params: SamplingParams,
    ) -> None:
        self.name = name
        self._model, self._eos = model, [] if params.ignore_eos else eos
        self._seed, self._sampling = params.seed, not params.greedy
        self._extra: dict[str, Any] = {}
        if name == ASSISTANT:
            self._extra["assistant_model"] = draft
        elif name != PLAIN:
            self._extra["prompt_lookup_num_tokens"] = lookup_tokens(name)

    def reset(self) -> None:
        """Do nothing, because there is no state between calls."""

    def prepare(self, prompts: list[list[int]], max_new_tokens: int) -> Callable[[], Any]:
        """Pad the prompts on the left, and return a function that calls `generate`."""
        width = max(map(len, prompts))
        ids = torch.tensor(
            [[0] * (width - len(prompt)) + prompt for prompt in prompts], device=self._model.device
        )
        mask = torch.tensor(
            [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts],
            device=self._model.device,
        )
        if self._sampling:
            torch.manual_seed(self._seed)
        model, extra = self._model, self._extra
        generate: Callable[..., Any] = model.generate
        return lambda: generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=max_new_tokens, **extra
        )

    def collect(self, raw: Any, prompts: list[list[int]]) -> list[MethodAnswer]:
        """Return the new tokens up to the first end-of-sequence token."""
        width = max(map(len, prompts))
        return [MethodAnswer(_cut(row, self._eos)) for row in raw[:, width:].tolist()]

    def timing(self) -> Timing | None:
        """Return None, because the times are unknown."""
        return None


class Continuous(Transformers):
    """Answers by continuous batching, with `model.generate_batch`.

    Each call creates a new cache.
    """

    def prepare(self, prompts: list[list[int]], max_new_tokens: int) -> Callable[[], Any]:
        """Choose the cache size, and return a function that calls `generate_batch`."""
        positions = sum(map(len, prompts)) + len(prompts) * max_new_tokens
        blocks = len(prompts) + -(-positions // PAGE_POSITIONS)
        sizes = ContinuousBatchingConfig(num_blocks=blocks, max_batch_tokens=MAX_BATCH_TOKENS)
        config = copy.copy(self._model.generation_config)
        config.max_new_tokens = max_new_tokens
        generate: Callable[..., Any] = self._model.generate_batch
        return lambda: generate(prompts, config, continuous_batching_config=sizes, warmup=False)

    def collect(self, raw: Any, prompts: list[list[int]]) -> list[MethodAnswer]:
        """Return the new tokens up to the first end-of-sequence token."""
        by_number = sorted(
            raw.values(), key=lambda output: int(output.request_id.rpartition("_")[2])
        )
        return [
            MethodAnswer(_cut(list(output.generated_tokens), self._eos)) for output in by_number
        ]


class ObservedDrafter(DelegatingDrafter):
    """Forwards calls to a drafter, and also passes every outcome to `see`."""

    def __init__(self, inner: Drafter, see: Callable[[Outcome], None]) -> None:
        super().__init__(inner)
        self._see, self.learns_at_rest = see, inner.learns_at_rest

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Pass the outcomes to `see`, before the drafter learns from them."""
        for outcome in outcomes:
            self._see(outcome)
        super().observe(outcomes)


@contextlib.contextmanager
def same_rules(model: PreTrainedModel, params: SamplingParams, eos: list[int]) -> Iterator[None]:
    """Make `model.generate` sample and stop as `LLM` does, inside a `with` block.

    Args:
        params: Sampling parameters that `LLM` would use.
    """
    before, verbosity = model.generation_config, transformers.logging.get_verbosity()
    pad = before.pad_token_id if before.pad_token_id is not None else (eos or [0])[0]
    sampling: dict[str, Any] = {"do_sample": False}
    if not params.greedy:
        sampling = {
            "do_sample": True,
            "temperature": params.temperature,
            "top_k": params.top_k,
            "top_p": params.top_p,
        }
        sampling |= {"min_p": params.min_p} if params.min_p else {}
    model.generation_config = GenerationConfig(
        eos_token_id=None if params.ignore_eos or not eos else eos,
        pad_token_id=pad,
        repetition_penalty=params.repetition_penalty,
        min_new_tokens=params.min_tokens or None,
        **sampling,
    )
    transformers.logging.set_verbosity_error()  # the assistant warns about its own call
    try:
        yield
    finally:
        model.generation_config = before
        transformers.logging.set_verbosity(verbosity)


def _with_length(params: SamplingParams, max_new_tokens: int) -> SamplingParams:
    return dataclasses.replace(
        params, max_new_tokens=max_new_tokens, min_tokens=min(params.min_tokens, max_new_tokens)
    )


def _cut(token_ids: list[int], eos: list[int]) -> list[int]:
    for index, token in enumerate(token_ids):
        if token in eos:
            return token_ids[: index + 1]
    return token_ids
