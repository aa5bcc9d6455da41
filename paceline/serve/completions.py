"""Serve the endpoint /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from paceline import grammars
from paceline.core.sampling_params import SamplingParams
from paceline.errors import ConfigError
from paceline.llm import Chunk, Completion
from paceline.serve.answers import AnswerRequest
from paceline.serve.errors import ApiError
from paceline.serve.logprobs import AnswerSpelling, TokenLogprobs, completion_logprobs
from paceline.serve.protocol_settings import MAX_TOKENS
from paceline.serve.requests import CompletionRequest
from paceline.serve.responding import EVENTS, respond, wants_usage
from paceline.serve.responses import CompletionChoice, CompletionLogprobs, CompletionResponse, Usage
from paceline.serve.sampling import params_of_answers, response_schema
from paceline.serve.serving import Serving
from paceline.text.detokenizer import text_of
from paceline.text.tokens import text_ids

Prompt = str | list[int]
PromptLogprobs = Sequence[Mapping[int, float] | None]


def completion_routes(serving: Serving) -> APIRouter:
    """Build the route of the endpoint /v1/completions."""
    router = APIRouter()

    @router.post(
        "/v1/completions",
        response_model=None,
        responses={200: {"model": CompletionResponse, **EVENTS}},
    )
    async def create_completion(body: CompletionRequest, request: Request) -> Response:
        """Continue one or more prompts."""
        serving.check_model(body.model)
        _check(body, serving.settings.max_logprobs)
        prompts = _prompts(body.prompt)
        serving.check_answers(len(prompts) * (body.n or 1))
        max_tokens = MAX_TOKENS if body.max_tokens is None else body.max_tokens
        scored = body.logprobs if body.echo else None
        params = await serving.run_in_thread(lambda: _params(serving, body, max_tokens, scored))
        ids = [
            await serving.run_in_thread(partial(_ids, serving, prompt, max_tokens))
            for prompt in prompts
        ]
        answer_requests = [
            AnswerRequest(prompt_ids, answer_params)
            for prompt_ids in ids
            for answer_params in params
        ]
        echoed = [prompt if body.echo else None for prompt in prompts for _ in params]
        return await respond(
            serving,
            request,
            body,
            ids,
            answer_requests,
            CompletionFormatter(serving, request.state.id, answer_requests, echoed, body),
        )

    return router


class CompletionFormatter:
    """Formats answers as completions, without splitting off the reasoning.

    Args:
        serving: Served model.
        id: Id of the HTTP request.
        answer_requests: Prompt and sampling parameters of each answer.
        echoed: For each answer, the prompt to repeat before the answer's text, or None. The prompt
            is text or token ids, as in the request. The token ids are valid, because the engine
            checks them before it sends the first chunk.
        body: Body of the request.
    """

    names_events = False
    reasoning_tokens = 0

    def __init__(
        self,
        serving: Serving,
        id: str,
        answer_requests: Sequence[AnswerRequest],
        echoed: list[Prompt | None],
        body: CompletionRequest,
    ) -> None:
        self._tokenizer, self._model, self._id = (
            serving.llm.tokenizer,
            serving.names[0],
            f"cmpl-{id}",
        )
        self._answer_requests, self._echoed = answer_requests, echoed
        self._body = body
        self._spellings: dict[int, AnswerSpelling] = {}
        # Number of characters before the next token, by index of the answer.
        self._offsets: dict[int, int] = {}

    def full(self, completions: Sequence[Completion], usage: Usage) -> CompletionResponse:
        """Return all answers in one response."""
        choices = [
            CompletionChoice(
                index=index,
                text=self._echo(index) + completion.text,
                finish_reason=completion.finish_reason,
                logprobs=_joined(
                    self._scores(index, completion.prompt_logprobs),
                    self._logprobs(index, completion.token_ids, completion.logprobs, last=True),
                ),
            )
            for index, completion in enumerate(completions)
        ]
        return CompletionResponse(id=self._id, model=self._model, choices=choices, usage=usage)

    def first(self, index: int, chunk: Chunk) -> list[CompletionResponse]:
        """Return the event with the echoed prompt, if the client requested an echo."""
        if self._echoed[index] is None:
            return []
        scores = self._scores(index, chunk.prompt_logprobs)
        choice = CompletionChoice(
            index=index, text=self._echo(index), logprobs=scores, finish_reason=None
        )
        return [self._event(choice)]

    def read(self, index: int, chunk: Chunk) -> None:
        """Do nothing, because each `Completion` already contains its whole text."""

    def delta(self, index: int, chunk: Chunk) -> list[CompletionResponse]:
        """Return the event that streams a chunk of an answer."""
        reason = None if chunk.completion is None else chunk.completion.finish_reason
        logprobs = self._logprobs(index, chunk.token_ids, chunk.logprobs, last=reason is not None)
        if not (chunk.text or chunk.logprobs or reason or self._body.trace):
            return []
        choice = CompletionChoice(
            index=index, text=chunk.text, finish_reason=reason, logprobs=logprobs
        )
        return [self._event(choice)]

    def last(self, usage: Usage) -> list[CompletionResponse]:
        """Return the event with the token counts, if the client requested them."""
        if not wants_usage(self._body):
            return []
        return [CompletionResponse(id=self._id, model=self._model, choices=[], usage=usage)]

    def failure(self, error: ApiError) -> BaseModel:
        """Return the event that ends a stream with an error."""
        return error.body

    def _event(self, choice: CompletionChoice) -> CompletionResponse:
        return CompletionResponse(id=self._id, model=self._model, choices=[choice])

    def _logprobs(
        self, index: int, token_ids: list[int], logprobs: TokenLogprobs | None, last: bool
    ) -> CompletionLogprobs | None:
        if logprobs is None:
            return None
        if index not in self._spellings:
            answer_request = self._answer_requests[index]
            self._spellings[index] = AnswerSpelling(
                self._tokenizer, answer_request.prompt, answer_request.params.skip_special_tokens
            )
            self._offsets[index] = len(self._echo(index))
        result = completion_logprobs(
            self._spellings[index], token_ids, logprobs, self._offsets[index], last
        )
        self._offsets[index] += sum(map(len, result.tokens))
        return result

    def _scores(self, index: int, logprobs: PromptLogprobs | None) -> CompletionLogprobs | None:
        """Format the log-probabilities of an echoed prompt."""
        sent, answer_request = self._echoed[index], self._answer_requests[index]
        if sent is None or logprobs is None:
            return None
        # The first token has no log-probability: null replaces this 0.0 below.
        rows = [{answer_request.prompt[0]: 0.0}, *(row for row in logprobs if row is not None)]
        if isinstance(sent, str):
            result = self._spell_sent(sent, answer_request.prompt, rows)
        else:
            result = completion_logprobs(
                AnswerSpelling(self._tokenizer, (), answer_request.params.skip_special_tokens),
                answer_request.prompt,
                rows,
                0,
            )
        result.token_logprobs[0] = result.top_logprobs[0] = None
        return result

    def _spell_sent(
        self, sent: str, token_ids: list[int], rows: TokenLogprobs
    ) -> CompletionLogprobs:
        """Format the log-probabilities of a prompt that the client sent as text.

        Text offsets count characters from the start of the client's text. The text includes special
        tokens that the client wrote, but not those that the tokenizer added.

        Args:
            sent: Prompt as sent by the client.
            token_ids: Token ids of the prompt.
            rows: Log-probabilities at each position of the prompt.
        """
        for hides in (True, False):
            result = completion_logprobs(
                AnswerSpelling(self._tokenizer, (), hides), token_ids, rows, 0
            )
            spelled = "".join(result.tokens)
            if spelled == sent:
                break
        added = len(spelled) - len(sent) if spelled.endswith(sent) else 0
        result.text_offset = [max(0, offset - added) for offset in result.text_offset]
        return result

    def _echo(self, index: int) -> str:
        sent = self._echoed[index]
        if sent is None or isinstance(sent, str):
            return sent or ""
        return text_of(
            self._tokenizer, sent, self._answer_requests[index].params.skip_special_tokens
        )


def _joined(
    prompt: CompletionLogprobs | None, answer: CompletionLogprobs | None
) -> CompletionLogprobs | None:
    """Concatenate the log-probabilities of an echoed prompt and its answer."""
    if prompt is None or answer is None:
        return answer
    both = {name: values + getattr(answer, name) for name, values in prompt}
    return CompletionLogprobs(**both)


def _params(
    serving: Serving, body: CompletionRequest, max_tokens: int, scored: int | None
) -> list[SamplingParams]:
    params = serving.sampler.params(body, max_tokens, body.logprobs, scored)
    schema = response_schema(body.response_format)
    if schema is not None:
        grammar = grammars.json_schema(serving.llm.tokenizer, schema, serving.llm.eos_token_ids)
        params = replace(params, logits_processors=(grammar,))
    return params_of_answers(params)


def _check(body: CompletionRequest, max_logprobs: int) -> None:
    if body.logprobs is not None and body.logprobs > max_logprobs:
        raise ConfigError(f"logprobs: got {body.logprobs}; expected at most {max_logprobs}.")
    if body.best_of not in (None, body.n or 1):
        raise ConfigError(f"best_of: got {body.best_of}; expected n, {body.n or 1}. Leave it out.")


def _prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> list[Prompt]:
    """Split the `prompt` field into individual prompts."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise ConfigError(
            "prompt: got an empty list; expected a text, a list of token ids, or a list of prompts."
        )
    ids = [entry for entry in prompt if isinstance(entry, int)]
    return [ids] if ids else [entry for entry in prompt if not isinstance(entry, int)]


def _ids(serving: Serving, prompt: Prompt, max_tokens: int) -> list[int]:
    ids = text_ids(serving.llm.tokenizer, prompt, "prompt") if isinstance(prompt, str) else prompt
    serving.check_prompt(ids, max_tokens)
    return ids
