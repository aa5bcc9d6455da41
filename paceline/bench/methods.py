"""The ways to answer that a bench run compares: our drafters, and what transformers offers. All
share one model object.
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

from paceline.bench.result import Guarantee
from paceline.bench.settings import ASSISTANT, PLAIN, lookup_tokens
from paceline.core.drafter import DelegatingDrafter, Drafter, Outcome
from paceline.core.metrics import Stats, Timing
from paceline.core.request import SamplingParams
from paceline.llm import LLM

_PAGE = 256  # positions of a block in transformers' paged cache
_MOST_TOKENS = 512  # of a forward there


@dataclass(frozen=True, slots=True)
class MethodAnswer:
    """The tokens of one answer, an end-of-sequence token included; counts where the method keeps
    any.
    """

    token_ids: list[int]
    stats: Stats | None = None


class Method(Protocol):
    """One way to answer. `prepare` and `collect` are not timed, what `prepare` returns is."""

    name: str

    def reset(self) -> None:
        """Forget everything learnt from earlier prompts."""

    def prepare(self, prompts: list[list[int]], max_new_tokens: int) -> Callable[[], Any]:
        """Everything before the call, and the call."""

    def collect(self, raw: Any, prompts: list[list[int]]) -> list[MethodAnswer]:
        """The answers out of what the call returned."""

    def timing(self) -> Timing | None:
        """Where time went so far, for methods that know."""


class Paceline:
    """`LLM.generate` with one drafter."""

    def __init__(
        self, name: str, llm: LLM, make: Callable[[], Drafter], params: SamplingParams
    ) -> None:
        self.name = name
        # the drafter draws from its own distribution: sampled texts differ, their law does not
        self.draws = False
        self._llm, self._make, self._params = llm, make, params

    @property
    def guarantee(self) -> Guarantee:
        """Whether its answers have the bits of plain decoding."""
        return Guarantee(self._llm.invariance.on, self._llm.invariance.reason)

    def reset(self) -> None:
        """A new drafter."""
        self._llm.change_drafter(self._make())

    def prepare(self, prompts: list[list[int]], max_new_tokens: int) -> Callable[[], Any]:
        """Token ids in, completions out."""
        params = _with_length(self._params, max_new_tokens)
        return lambda: self._llm.generate(prompts, params)

    def collect(self, raw: Any, prompts: list[list[int]]) -> list[MethodAnswer]:
        """The completions' tokens and counts."""
        return [MethodAnswer(completion.token_ids, completion.stats) for completion in raw]

    def timing(self) -> Timing | None:
        """That of the engine; on an accelerator forwards run on after they are launched, so
        None.
        """
        return self._llm.timing if self._llm.model.device.type == "cpu" else None

    def watch(self, prompts: list[list[int]], max_new_tokens: int) -> None:
        """Answer untimed, and note whether the drafter's trees carry distributions."""
        outcomes: list[Outcome] = []
        self._llm.change_drafter(ObservedDrafter(self._llm.drafter, outcomes.append))
        self.prepare(prompts, max_new_tokens)()
        self.draws = any(outcome.tree.probs is not None for outcome in outcomes)


class Transformers:
    """`model.generate`: plain, with prompt lookup, or with an assistant."""

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
        """Nothing is kept between calls."""

    def prepare(self, prompts: list[list[int]], max_new_tokens: int) -> Callable[[], Any]:
        """Left-padded ids and their mask, on the device."""
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
        """The new tokens, up to the first end-of-sequence token."""
        width = max(map(len, prompts))
        return [MethodAnswer(_cut(row, self._eos)) for row in raw[:, width:].tolist()]

    def timing(self) -> Timing | None:
        """Not known."""
        return None


class Continuous(Transformers):
    """`model.generate_batch`: plain, with continuous batching, in a paged cache that is made for
    the call.
    """

    def prepare(self, prompts: list[list[int]], max_new_tokens: int) -> Callable[[], Any]:
        """Token ids, and a cache of their size."""
        positions = sum(map(len, prompts)) + len(prompts) * max_new_tokens
        sizes = ContinuousBatchingConfig(
            num_blocks=len(prompts) + -(-positions // _PAGE), max_batch_tokens=_MOST_TOKENS
        )
        config = copy.copy(self._model.generation_config)
        config.max_new_tokens = max_new_tokens
        generate: Callable[..., Any] = self._model.generate_batch
        return lambda: generate(prompts, config, continuous_batching_config=sizes, warmup=False)

    def collect(self, raw: Any, prompts: list[list[int]]) -> list[MethodAnswer]:
        """The new tokens, up to the first end-of-sequence token."""
        by_number = sorted(raw.values(), key=lambda one: int(one.request_id.rpartition("_")[2]))
        return [MethodAnswer(_cut(list(one.generated_tokens), self._eos)) for one in by_number]


class ObservedDrafter(DelegatingDrafter):
    """Passes everything on to a drafter, and what the target said about its trees to `see` as
    well.
    """

    def __init__(self, inner: Drafter, see: Callable[[Outcome], None]) -> None:
        super().__init__(inner)
        self._see = see

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Show the outcomes, before the drafter learns from them."""
        for outcome in outcomes:
            self._see(outcome)
        super().observe(outcomes)


@contextlib.contextmanager
def same_rules(model: PreTrainedModel, params: SamplingParams, eos: list[int]) -> Iterator[None]:
    """While open, `model.generate` chooses and ends like `LLM` with `params`; the model's own
    defaults come back after.
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
    transformers.logging.set_verbosity_error()  # its assistant warns about its own call
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
    for place, token in enumerate(token_ids):
        if token in eos:
            return token_ids[: place + 1]
    return token_ids
