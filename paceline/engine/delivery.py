"""What callers get of their tickets: completions, and the chunks of streams."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as ListLike
from dataclasses import replace
from typing import Any

from paceline.engine.answer import Chunk, Completion
from paceline.engine.drafter import Outcome
from paceline.engine.origin import Origin
from paceline.engine.sequence import Sequence
from paceline.engine.ticket import Ticket
from paceline.engine.writer import Writer, origins_of


class Chunks:
    """Makes the chunks of one stream.

    Args:
        ticket: of the streamed request.
        tokenizer: of the model; None leaves the texts empty.
    """

    def __init__(self, ticket: Ticket, tokenizer: Any) -> None:
        self._ticket = ticket
        self._writer = writer_of(ticket.seq, tokenizer)

    def of(self, outcomes: ListLike[Outcome], done: bool) -> Iterator[Chunk]:
        """Yield a chunk for each step.

        Args:
            outcomes: of the steps since the last call.
            done: the last of them ended the request.
        """
        writer = self._writer
        for outcome in outcomes:
            last = done and outcome is outcomes[-1]
            written = writer.write(outcome.new_token_ids, origins_of(outcome), last)
            forwards = self._ticket.seq.counters.prefill_forwards + writer.step - 1
            completion = _completion(self._ticket, writer.text) if last else None
            yield Chunk.of(outcome, written, writer.step, forwards, completion)


def writer_of(seq: Sequence, tokenizer: Any) -> Writer:
    """Return the writer of an answer's text."""
    return Writer(tokenizer, seq.token_ids[: seq.prompt_length], seq.stop, seq.params.skip_special_tokens)


def completion_of(ticket: Ticket, tokenizer: Any) -> Completion:
    """Return the completion of a request, ended or not."""
    ids, writer = ticket.seq.output_ids, writer_of(ticket.seq, tokenizer)
    writer.write(ids, [Origin.TARGET] * len(ids), last=True)
    return _completion(ticket, writer.text)


def _completion(ticket: Ticket, text: str) -> Completion:
    seq = ticket.seq
    logprobs = None if seq.params.logprobs is None else seq.logprobs
    reason = seq.finish_reason or "length"
    return Completion(text, seq.output_ids, reason, ticket.stats(), logprobs, seq.prompt_logprobs)


def completions_of(groups: ListLike[list[Sequence]], tickets: ListLike[Ticket], tokenizer: Any) -> list[Completion]:
    """Return one completion per prompt; with `SamplingParams.n`, it holds the others.

    Args:
        groups: the sequences of each prompt.
        tickets: of all groups, in their order.
        tokenizer: of the model, or None.
    """
    completions = iter([completion_of(ticket, tokenizer) for ticket in tickets])
    each = [[next(completions) for _ in group] for group in groups]
    return [replace(first, others=tuple(others)) if others else first for first, *others in each]
