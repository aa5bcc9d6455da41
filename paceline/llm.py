"""Load a target model and a drafter, and generate answers losslessly."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.drafter import Drafter
from paceline.core.sampling_params import SamplingParams
from paceline.core.settings import (
    BATCH_INVARIANT,
    BatchInvariant,
    FixedShapes,
    OnDrafterError,
)
from paceline.drafters import Maker, create, uses_draft_model
from paceline.engine.async_engine import AsyncEngine
from paceline.engine.chat_facade import ChatFacade
from paceline.engine.completion import Chunk, Completion
from paceline.engine.delivery import Chunks, completions_of, stream_chunks
from paceline.engine.engine import Engine
from paceline.engine.engine_limits import check_limits, checked_length
from paceline.engine.input_processor import InputProcessor, Prompt, Prompts
from paceline.engine.request_handle import CallProgress
from paceline.errors import ConfigError
from paceline.util.garbage_collection import collection_paused
from paceline.util.options import ENGINE, EngineName, WeightFormat

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from paceline.draft_budget.cost_curve import CostCurve
    from paceline.draft_budget.settings import DraftBudgetSettings
    from paceline.engine.parallel.ranks import Ranks

__all__ = ["LLM", "Chunk", "Completion"]


class LLM(ChatFacade):
    """A target model with a drafter. The answers equal those of the model alone.

    Several threads may call the same `LLM`, even while streams are open. The engine batches the
    requests of all calls.

    Args:
        model: Directory, hub id, GGUF file, "demo" or "smollm2" (built-in models), or a loaded
            transformers model, which is put into eval mode.
        drafter: "auto" (default), another "name" or "name:key=value,key=value" (see `paceline
            drafters`), a class as "module:Class", or a `Drafter`.
        draft_model: Draft model, in any form that `model` accepts. Some drafters need one, and
            "auto" uses one if it is available. The drafters that individual requests select
            (`SamplingParams.speculation`) use the same draft model. Default: none.
        tokenizer: Directory, hub id, GGUF file or object. Default: the tokenizer stored with
            `model`. Prompts given as token ids need no tokenizer.
        processor: Directory, hub id or object. Default: the processor stored with `model`. Only
            prompts with images, videos or audio need a processor.
        dtype: "float32", "bfloat16", "float16" or "auto" (default), which uses the checkpoint's
            data type, or bfloat16 for a GGUF file.
        device: "cpu", "cuda", "cuda:1", or "auto" (default), which uses a GPU if there is one.
        max_length: Maximum number of tokens in the prompt and answer together; from 2 to the
            model's context length. Default: the model's context length.
        max_batch: Maximum number of requests per forward pass; at least 1. Further requests wait.
        max_nodes: Maximum number of draft nodes verified per request and step; at least 0.
        lookahead_parallel: Whether several processes split the work on every draft tree. Pass True,
            or the `Ranks` object of processes that are already connected. Each process loads the
            model and makes the same calls. Default: False.
        batch_invariant: If True, the logits for a given text are bit-for-bit identical in any
            batch, with or without drafts, for every data type. With "auto" (default), the logits
            are batch-invariant if a check at load time finds a slowdown below 5 %. False turns
            batch invariance off.
        fixed_shapes: Whether decode steps use only a few tensor shapes, so that CUDA can run the
            steps as captured graphs. "auto" (default) uses fixed shapes on CUDA only. Models with
            recurrent layers never use fixed shapes.
        cache_gib: Maximum memory for the KV cache in GiB; above 0. Requests wait when the cache is
            full. On a GPU, the engine allocates all of this memory at the start. Default: the
            cache grows as needed, up to most of the available memory.
        keep_prefixes: Number of finished requests that stay in the KV cache; at least 0. A new
            prompt that starts with the same tokens as one of them, such as the next turn of a
            conversation, reuses the cached keys and values (prefix caching). The model's weights
            must not change between the requests.
        on_drafter_error: What happens to a drafter's requests if the drafter fails. "raise"
            (default) ends the requests; "plain" continues the requests without drafts.
        cost_curve: Seconds per forward pass for each number of rows (tokens). The draft budget
            uses this curve instead of measured times. Default: measured times.
        draft_budget: Limits on verified draft nodes. Default: `DraftBudgetSettings()`.
        unpack: Whether a GGUF file is converted to a bfloat16 checkpoint in the cache. If False,
            paceline computes directly with the packed weights in the file, in bfloat16 on a CPU.
            The answers equal those of the converted model. Default: False if the processor has
            bfloat16 instructions (AVX512_BF16 or AMX), otherwise True.
        weights: Format into which paceline packs the weights of a safetensors checkpoint: "q8_0"
            or "q4_k". Packed weights require a CPU. Packing changes the model: answers equal those
            of plain decoding with the packed model. Default: the weights are not packed.
        engine: Library that runs the model: "transformers" (default), or "llama.cpp" for GGUF
            files.
    Attributes:
        has_draft_model: Whether the drafters of requests can use a draft model.
    Raises:
        ConfigError: An argument cannot be used.
        UnsupportedModelError: The model cannot be verified losslessly.
    """

    def __init__(
        self,
        model: str | Path | PreTrainedModel,
        drafter: str | Drafter = "auto",
        draft_model: str | Path | PreTrainedModel | None = None,
        tokenizer: Any = None,
        processor: Any = None,
        dtype: str | torch.dtype = "auto",
        device: str = "auto",
        max_length: int | None = None,
        max_batch: int = 8,
        max_nodes: int = 256,
        lookahead_parallel: bool | Ranks = False,
        batch_invariant: BatchInvariant = BATCH_INVARIANT,
        fixed_shapes: FixedShapes = "auto",
        cache_gib: float | None = None,
        keep_prefixes: int = 0,
        on_drafter_error: OnDrafterError = "raise",
        cost_curve: CostCurve | None = None,
        draft_budget: DraftBudgetSettings | None = None,
        unpack: bool | None = None,
        weights: WeightFormat | None = None,
        engine: EngineName = ENGINE,
    ) -> None:
        check_limits(max_batch, max_nodes, keep_prefixes, max_length, on_drafter_error)
        spec = drafter if isinstance(drafter, str) else None
        ranks, drafter, device = _prepare(drafter, draft_model, lookahead_parallel, device)
        # Imported here: model code takes seconds to import.
        with collection_paused():
            from paceline.engine.target_loading import context_length, load_target
            from paceline.media.processor import MediaProcessor
            from paceline.model.loading import eos_token_ids, must_unpack, require_draft
            from paceline.model.tokenizer_loading import load_tokenizer

        if isinstance(drafter, str):
            require_draft(draft_model)
        # llama.cpp needs only the tokenizer.
        unpack = engine == ENGINE and must_unpack(model, dtype, device, unpack)
        loaded = load_target(model, engine, dtype, device, unpack, weights)
        self.max_length = checked_length(max_length, context_length(loaded))
        tokenizer = getattr(processor, "tokenizer", None) if tokenizer is None else tokenizer
        self.tokenizer, self._source = load_tokenizer(tokenizer, model, unpack), model
        self._media = MediaProcessor(loaded, model if processor is None else processor)
        self.has_draft_model = draft_model is not None
        make = Maker(draft_model, dtype, str(loaded.device))
        self._engine = Engine(
            loaded,
            make(drafter) if isinstance(drafter, str) else drafter,
            spec=spec,
            make=make,
            tokenizer=self.tokenizer,
            max_batch=max_batch,
            max_nodes=max_nodes,
            max_length=self.max_length,
            ranks=ranks,
            batch_invariant=batch_invariant,
            fixed_shapes=fixed_shapes,
            cache_gib=cache_gib,
            keep_prefixes=keep_prefixes,
            on_drafter_error=on_drafter_error,
            cost_curve=cost_curve,
            draft_budget=draft_budget,
        )
        self._async_engine = AsyncEngine(self._engine)
        self.eos_token_ids = eos_token_ids(loaded, self.tokenizer)

    def generate(
        self,
        prompts: Prompts,
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        progress: Callable[[CallProgress], object] | None = None,
    ) -> list[Completion]:
        """Generate an answer to each prompt, in the order of the prompts.

        Args:
            prompts: A string, a list of strings, or a list of token-id sequences (lists, arrays or
                tensors). Prompts with images, videos or audio are `MultimodalPrompt` objects, or
                come from `chat_prompt`.
            params: One `SamplingParams` for all prompts, or one per prompt; default
                `SamplingParams()`.
            progress: Callback invoked after every step, in the calling thread. If the callback
                raises an error, the call is cancelled.
        Returns:
            One completion per prompt. If `SamplingParams.n` is above 1, `Completion.others`
            contains the additional answers.
        Raises:
            ConfigError, CapacityError: A prompt, or a drafter named in its parameters, cannot be
                used. In that case, none of the requests starts.
        """
        groups = self._inputs.request_groups(prompts, params)
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
        """Generate the answer to one prompt, one chunk per step.

        Closing the iterator ends the request and frees its memory.

        Raises:
            ConfigError, CapacityError: The prompt or its drafter cannot be used, or
                `SamplingParams.n` is above 1.
        """
        return stream_chunks(self._engine, self._inputs.single(prompt, params), self.tokenizer)

    async def agenerate(
        self, prompts: Prompts, params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Completion]:
        """Run `generate` in asyncio without blocking the event loop.

        All calls share one batch. Cancelling a call ends its requests and frees their memory.
        """
        groups = self._inputs.request_groups(prompts, params)
        handles = await self._async_engine.submit(
            [request for group in groups for request in group]
        )
        async with self._async_engine.holding(handles):
            await self._async_engine.finish(handles)
        return completions_of(groups, handles, self.tokenizer)

    async def astream(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> AsyncGenerator[Chunk, None]:
        """Run `stream` in asyncio; `aclose` ends the request and frees its memory."""
        request = self._inputs.single(prompt, params)
        (handle,) = await self._async_engine.submit([request], keep_outcomes=True)
        chunks, done = Chunks(handle, self.tokenizer), False
        async with self._async_engine.holding([handle]):
            while not done:
                outcomes, done = await self._async_engine.collect(handle)
                for chunk in chunks.of(outcomes, done):
                    yield chunk

    @property
    def _inputs(self) -> InputProcessor:
        return InputProcessor(
            self.tokenizer,
            self._source,
            self.model.vocab_size,
            self.eos_token_ids,
            self.max_length,
            self._media,
        )


def _prepare(
    drafter: str | Drafter, draft_model: object, lookahead_parallel: object, device: str
) -> tuple[Ranks | None, str | Drafter, str]:
    """Check the drafter and the ranks before loading the model, which is slow.

    Returns:
        The ranks, the drafter and the device. A drafter that needs the draft model is returned
        as a spec.
    """
    if not isinstance(drafter, str | Drafter):
        raise ConfigError(
            f"\0drafter\0: got {drafter!r}; expected a name, 'name:key=value' or a Drafter object."
            " Plain decoding is 'none'."
        )
    ranks: Ranks | None = None
    if lookahead_parallel is not False:
        # Imported here: not every build of torch has torch.distributed.
        from paceline.engine.parallel.ranks import check_columns, join_ranks, local_device

        ranks = join_ranks(lookahead_parallel, device)
    if isinstance(drafter, str) and not uses_draft_model(drafter, draft_model):
        drafter = create(drafter)
    if ranks is not None:
        if isinstance(drafter, Drafter):
            check_columns(drafter, ranks.size)
        device = local_device(device)
    return ranks, drafter, device
