"""Build completions and stream chunks from requests and step outcomes."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paceline.core.drafter import Outcome
from paceline.core.origin import Origin
from paceline.core.request import Request
from paceline.engine.completion import Chunk, Completion
from paceline.engine.request_handle import RequestHandle
from paceline.sampling.stream_writer import StreamWriter, token_origins

if TYPE_CHECKING:
    from paceline.engine.engine import Engine


class Chunks:
    """Builds the chunks of one stream.

    Args:
        handle: Handle of the streamed request.
        tokenizer: The model's tokenizer; with None, all texts are empty.
    """

    def __init__(self, handle: RequestHandle, tokenizer: Any) -> None:
        self._handle = handle
        self._writer = writer_of(handle.request, tokenizer)

    def of(self, outcomes: Sequence[Outcome], done: bool) -> Iterator[Chunk]:
        """Yield one chunk per step for the new outcomes of the stream.

        Args:
            outcomes: Outcomes since the previous call.
            done: Whether the last outcome ended the request.
        """
        writer = self._writer
        for outcome in outcomes:
            last = done and outcome is outcomes[-1]
            written = writer.write(outcome.new_token_ids, token_origins(outcome), last)
            forwards = self._handle.request.counters.prefill_forwards + writer.step - 1
            completion = _completion(self._handle, writer.text) if last else None
            yield Chunk.of(outcome, written, writer.step, forwards, completion)


def stream_chunks(engine: Engine, request: Request, tokenizer: Any) -> Generator[Chunk, None, None]:
    """Submit a request and run steps until it ends; yield one chunk per step.

    Args:
        engine: Engine that runs the request.
        request: Request that has not been submitted yet.
        tokenizer: Tokenizer of the model, or None.
    """
    (handle,) = engine.submit([request], keep_outcomes=True)
    chunks, done = Chunks(handle, tokenizer), False
    try:
        while not done:
            outcomes, done = engine.collect(handle)
            yield from chunks.of(outcomes, done)
    finally:
        engine.withdraw([handle])


def writer_of(request: Request, tokenizer: Any) -> StreamWriter:
    """Return a writer that converts the tokens of a request's answer to text."""
    return StreamWriter(
        tokenizer,
        request.token_ids[: request.prompt_length],
        request.stop,
        request.params.skip_special_tokens,
    )


def completion_of(handle: RequestHandle, tokenizer: Any) -> Completion:
    """Build the completion of a request, even if the request is still running."""
    ids, writer = handle.request.output_ids, writer_of(handle.request, tokenizer)
    writer.write(ids, [Origin.TARGET] * len(ids), last=True)
    return _completion(handle, writer.text)


def _completion(handle: RequestHandle, text: str) -> Completion:
    request = handle.request
    logprobs = None if request.params.logprobs is None else request.logprobs
    reason = request.finish_reason or "length"
    return Completion(
        text, request.output_ids, reason, handle.stats(), logprobs, request.prompt_logprobs
    )


def completions_of(
    groups: Sequence[list[Request]], handles: Sequence[RequestHandle], tokenizer: Any
) -> list[Completion]:
    """Build one completion per prompt, with any further answers in `others`.

    Args:
        groups: For each prompt, the requests for its answers.
        handles: Handles of all requests in `groups`, in the same order.
        tokenizer: Tokenizer of the model, or None.
    """
    completions = iter([completion_of(handle, tokenizer) for handle in handles])
    each = [[next(completions) for _ in group] for group in groups]
    return [replace(first, others=tuple(others)) if others else first for first, *others in each]
