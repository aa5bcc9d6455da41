"""LLM: the public face. A model, a drafter, and prompts in; the model's own answers out, sooner."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from paceline.core.drafter import Drafter
from paceline.core.metrics import EngineLoad, Timing
from paceline.core.request import Request, SamplingParams
from paceline.draft_budget.acceptance_calibration import AcceptanceCalibration
from paceline.draft_budget.cost_curve import CostCurve
from paceline.draft_budget.costs import Costs
from paceline.drafters import Maker, create, entry
from paceline.engine.async_engine import AsyncEngine
from paceline.engine.completion import Chunk, Completion
from paceline.engine.delivery import Chunks, completions_of
from paceline.engine.engine import Engine, OnDrafterError
from paceline.engine.input_processor import InputProcessor
from paceline.engine.parallel.model import check_columns
from paceline.engine.parallel.ranks import Ranks, local_device
from paceline.engine.request_handle import CallProgress
from paceline.errors import ConfigError
from paceline.invariance.invariance import Invariance
from paceline.model.cached_lm import CachedLM
from paceline.model.loading import eos_token_ids, load_model, load_tokenizer
from paceline.util.config import parse_spec, require_count
from paceline.util.conversations import chat_ids
from paceline.util.options import BATCH_INVARIANT, BatchInvariant

__all__ = ["LLM", "Chunk", "Completion"]

Prompt = str | Sequence[int] | NDArray[np.integer[Any]] | torch.Tensor
Prompts = str | Sequence[Prompt] | NDArray[np.integer[Any]] | torch.Tensor


class LLM:
    """A model that answers with drafts, in exactly its own words.

    Call it from several threads, and while streams are open: all calls share one batch, and each
    gets its own answers.

    Args:
        model: directory, hub id, GGUF file, "demo" or "smollm2" (embedded models), or a loaded
            transformers model (put into eval mode).
        drafter: "auto", or another "name" or "name:key=value,key=value" (of `paceline drafters`, or
            "module:Class" of your own), or a `Drafter`.
        draft_model: as `model`, for the drafters that need one, or take one as "auto" does; also
            for those of single requests (`SamplingParams.speculation`).
        tokenizer: directory, hub id, GGUF file or object; default the one beside `model`. Token-id
            prompts need none.
        dtype: "auto" (the checkpoint's; bfloat16 for a GGUF file), "float32", "bfloat16" or
            "float16".
        device: "auto" (a GPU where there is one), "cpu", "cuda", "cuda:1", ...
        max_length: cap on prompt + answer, in tokens; default the model's context.
        max_batch: most sequences per forward, over all callers; more prompts wait.
        max_nodes: most draft nodes verified per sequence and step.
        lookahead_parallel: True, or the `Ranks` that have been joined: share the work on every
            draft tree with the other processes of the run, each of which has its own copy of the
            model and makes the same calls.
        batch_invariant: True: logits depend on their own text alone, to the last bit, not on drafts
            or batch: the same text with and without drafts in any dtype. "auto": where a proof made
            at load says that it costs under 5 %.
        cache_gib: most memory of the cache in GiB; requests wait for it. None = most of what is
            available.
        keep_prefixes: ended requests whose keys and values stay in the cache for prompts that begin
            like them, as the next turn of a conversation does. The weights must not change
            meanwhile.
        on_drafter_error: "raise": an error of a drafter ends the requests that have it; "plain":
            they go on without drafts.
        cost_curve: seconds of a forward by its rows; no clock then decides how much of a draft tree
            is fed. None = as measured.
    Raises:
        ConfigError: an unusable argument.
        UnsupportedModelError: a model that cannot be verified losslessly.
    """

    def __init__(
        self,
        model: str | Path | PreTrainedModel,
        drafter: str | Drafter = "auto",
        draft_model: str | Path | PreTrainedModel | None = None,
        tokenizer: Any = None,
        dtype: str | torch.dtype = "auto",
        device: str = "auto",
        max_length: int | None = None,
        max_batch: int = 8,
        max_nodes: int = 256,
        lookahead_parallel: bool | Ranks = False,
        batch_invariant: BatchInvariant = BATCH_INVARIANT,
        cache_gib: float | None = None,
        keep_prefixes: int = 0,
        on_drafter_error: OnDrafterError = "raise",
        cost_curve: CostCurve | None = None,
    ) -> None:
        require_count("LLM", "max_batch", max_batch, 1)
        require_count("LLM", "max_nodes", max_nodes, 0)
        require_count("LLM", "keep_prefixes", keep_prefixes, 0)
        if on_drafter_error not in ("raise", "plain"):
            raise ConfigError(
                f"on_drafter_error: got {on_drafter_error!r}; expected 'raise' or 'plain'."
            )
        if max_length is not None:
            require_count("LLM", "max_length", max_length, 2)
        if not isinstance(drafter, str | Drafter):
            raise ConfigError(
                f"drafter: got {drafter!r}; expected a name, 'name:key=value' or a Drafter object."
                " Plain decoding is 'none'."
            )
        if not isinstance(lookahead_parallel, bool | Ranks):
            raise ConfigError(
                f"lookahead_parallel: got {lookahead_parallel!r}; expected True, False or the"
                " Ranks that were joined."
            )
        ranks = Ranks.join(device) if lookahead_parallel is True else lookahead_parallel or None
        spec = drafter if isinstance(drafter, str) else None
        if isinstance(drafter, str) and not _built_with_draft(drafter, draft_model):
            drafter = create(drafter)  # before a model is loaded: mistakes are told at once
        if ranks is not None and isinstance(drafter, Drafter):
            check_columns(drafter, ranks.size)
        loaded = load_model(model, dtype, device if ranks is None else local_device(device))
        self.tokenizer, self._source = load_tokenizer(tokenizer, model), model
        make = Maker(draft_model, dtype, str(loaded.device))
        if isinstance(drafter, str):
            drafter = make(drafter)
        self._engine = Engine(
            loaded,
            drafter,
            spec=spec,
            make=make,
            tokenizer=self.tokenizer,
            max_batch=max_batch,
            max_nodes=max_nodes,
            ranks=ranks,
            batch_invariant=batch_invariant,
            cache_gib=cache_gib,
            keep_prefixes=keep_prefixes,
            on_drafter_error=on_drafter_error,
            cost_curve=cost_curve,
        )
        self._waiters = AsyncEngine(self._engine)
        self.eos_token_ids = eos_token_ids(loaded, self.tokenizer)
        context = self.model.context_length
        self.max_length = context if max_length is None else min(max_length, context)

    @property
    def model(self) -> CachedLM:
        """The target with its cache."""
        return self._engine.model

    @property
    def drafter(self) -> Drafter:
        """The drafter of requests that name none."""
        return self._engine.drafter

    @property
    def invariance(self) -> Invariance:
        """Whether the bits of an answer depend on its own text alone, and why or why not."""
        return self._engine.invariance

    @property
    def acceptance_calibration(self) -> AcceptanceCalibration | None:
        """What the drafter's confidence was worth so far, by steps of it; None without a budget."""
        return self._engine.acceptance_calibration

    @property
    def cost_curve(self) -> CostCurve | None:
        """Seconds of a forward by the rows it is fed, as the budget has them; None before it
        needed them, or without one.
        """
        return None if self._engine.spending is None else self._engine.spending.curve

    @property
    def costs(self) -> Costs | None:
        """The measurement behind the cost curve: its conditions, and a way to repeat it; None
        without a budget.
        """
        return self._engine.costs

    @property
    def plain_seconds(self) -> float | None:
        """Seconds of a step of one request without drafts: by the cost curve, corrected by such
        steps; None like the curve.
        """
        return None if self._engine.spending is None else self._engine.spending.plain_seconds

    def change_drafter(self, drafter: Drafter) -> None:
        """Answer with another drafter from now on, between requests.

        Raises:
            ConfigError: requests are open, or the drafter does not fit the model.
        """
        self._engine.change_drafter(drafter)

    def generate(
        self,
        prompts: Prompts,
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        progress: Callable[[CallProgress], object] | None = None,
    ) -> list[Completion]:
        """Answer all prompts, in their order.

        Args:
            prompts: one text, texts, or lists of token ids, which may be arrays or tensors.
            params: for all, or one per prompt; default `SamplingParams()`.
            progress: called after every step, in this thread; what it raises ends the call.
        Returns:
            one answer per prompt; with `SamplingParams.n`, the further ones are in its `others`.
        Raises:
            ConfigError, CapacityError: a prompt, or a drafter it names, that cannot be used.
                Nothing has been started then.
        """
        groups = self._intake.answers(prompts, params)
        handles = self._engine.submit([request for group in groups for request in group])
        try:
            self._engine.finish(
                handles,
                lambda ended: None if progress is None else progress(CallProgress.of(handles)),
            )
        finally:
            self._engine.withdraw(handles)
        return completions_of(groups, handles, self.tokenizer)

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> Generator[Chunk, None, None]:
        """Answer one prompt, a chunk per step. Closing the iterator frees everything it holds.

        Raises:
            ConfigError, CapacityError: as `generate`; or several answers are asked for.
        """
        return self._stream(self._intake.single(prompt, params))

    def _stream(self, request: Request) -> Generator[Chunk, None, None]:
        (handle,) = self._engine.submit([request], keep_outcomes=True)
        chunks, done = Chunks(handle, self.tokenizer), False
        try:
            while not done:
                outcomes, done = self._engine.collect(handle)
                yield from chunks.of(outcomes, done)
        finally:
            self._engine.withdraw([handle])

    async def agenerate(
        self, prompts: Prompts, params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Completion]:
        """`generate` for asyncio: the event loop goes on meanwhile, and all calls share one batch.

        Cancelling it frees everything it holds.
        """
        groups = self._intake.answers(prompts, params)
        handles = await self._waiters.submit([request for group in groups for request in group])
        async with self._waiters.holding(handles):
            await self._waiters.finish(handles)
        return completions_of(groups, handles, self.tokenizer)

    async def astream(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> AsyncGenerator[Chunk, None]:
        """`stream` for asyncio; `aclose` frees everything it holds."""
        request = self._intake.single(prompt, params)
        (handle,) = await self._waiters.submit([request], keep_outcomes=True)
        chunks, done = Chunks(handle, self.tokenizer), False
        async with self._waiters.holding([handle]):
            while not done:
                outcomes, done = await self._waiters.collect(handle)
                for chunk in chunks.of(outcomes, done):
                    yield chunk

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool | None = None,
    ) -> Completion:
        """Answer a conversation; arguments and errors as `chat_prompt` and `generate`."""
        endings = {
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
        }
        ids = self.chat_prompt(messages, chat_template_kwargs, **endings)
        return self.generate([ids], params)[0]

    def chat_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        chat_template_kwargs: Mapping[str, Any] | None = None,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool | None = None,
    ) -> list[int]:
        """Return the token ids of a conversation, for `generate` and `stream`.

        Args:
            messages: each has a role and a content, which is a string or a list of text parts,
                {"type": "text", "text": ...}. The content of an assistant's message with
                tool_calls may be None. The chat template gets all other fields as they are.
            chat_template_kwargs: variables of the chat template, by its author's names, such as
                {"enable_thinking": False}. The two options below may be among them.
            add_generation_prompt: the template opens the assistant's answer. Default: True, but
                False with `continue_final_message`.
            continue_final_message: the prompt ends with the text of the final message, which is
                the assistant's, and the answer continues it. Default: False.
        Raises:
            ConfigError: messages that cannot be used, no tokenizer, or one without a chat template
                or whose template refuses the conversation.
        """
        return chat_ids(
            self.tokenizer,
            messages,
            "messages",
            chat_template_kwargs,
            add_generation_prompt,
            continue_final_message,
        )

    @property
    def timing(self) -> Timing:
        """Where the time of all steps went since this object was built."""
        return self._engine.timing

    @property
    def load(self) -> EngineLoad:
        """What has been done since this object was built, and what there is to do now, over all
        callers.
        """
        return self._engine.load

    @property
    def _intake(self) -> InputProcessor:
        return InputProcessor(
            self.tokenizer, self._source, self.model.vocab_size, self.eos_token_ids, self.max_length
        )


def _built_with_draft(spec: str, draft_model: object) -> bool:
    """Whether a drafter waits for its draft model, which is loaded after the target."""
    named = entry(parse_spec(spec)[0])
    return named.needs_draft_model or (draft_model is not None and named.takes_draft_model)
