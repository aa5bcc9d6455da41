"""Serve the endpoint /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from paceline.errors import ConfigError
from paceline.llm import Chunk, Completion
from paceline.serve.answers import AnswerRequest
from paceline.serve.logprobs import AnswerSpelling, TokenLogprobs, chat_logprobs
from paceline.serve.requests import ChatRequest
from paceline.serve.responding import EVENTS, respond
from paceline.serve.responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatLogprobs,
    ChatMessage,
    ChatResponse,
    Delta,
    Usage,
)
from paceline.serve.serving import Serving


def chat_routes(serving: Serving) -> APIRouter:
    """Return the endpoint for chats."""
    router = APIRouter()

    @router.post(
        "/v1/chat/completions",
        response_model=None,
        responses={200: {"model": ChatResponse, **EVENTS}},
    )
    async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
        """Answer the last message of a conversation."""
        serving.check_model(body.model)
        top = _top_logprobs(body, serving.settings.max_logprobs)
        serving.check_answers(body.n or 1)
        max_tokens = body.max_completion_tokens or body.max_tokens or serving.llm.max_length
        params = await serving.run_in_thread(lambda: serving.sampler.params(body, max_tokens, top))
        prompt = await serving.run_in_thread(lambda: prompt_of(serving, body))
        answer_requests = [AnswerRequest(prompt, answer_params) for answer_params in params]
        return await respond(
            serving,
            request,
            body,
            [prompt],
            answer_requests,
            ChatFormatter(serving, request.state.id, answer_requests, top),
        )

    return router


def prompt_of(serving: Serving, body: ChatRequest) -> list[int]:
    """Apply the chat template to a conversation and return its token ids.

    Raises:
        ConfigError: The chat template rejects the conversation.
        ApiError: The prompt is too long.
    """
    ids = serving.llm.chat_prompt(
        body.messages,
        body.chat_template_kwargs,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        local_files=False,
    )
    serving.check_prompt(ids)
    return ids


class ChatFormatter:
    """Formats answers as chat messages.

    Args:
        serving: Served model.
        id: Request id.
        answer_requests: Prompts and parameters of the answers.
        top: Number of top-k tokens to report per position; None reports no log-probabilities.
    """

    def __init__(
        self, serving: Serving, id: str, answer_requests: Sequence[AnswerRequest], top: int | None
    ) -> None:
        self._model, self._id = serving.names[0], f"chatcmpl-{id}"
        self._tokenizer, self._answer_requests = serving.llm.tokenizer, answer_requests
        self._spellings: dict[int, AnswerSpelling] = {}
        self._top = top

    def full(self, completions: Sequence[Completion], usage: Usage) -> ChatResponse:
        """Return all answers in one response."""
        choices = [
            ChatChoice(
                index=index,
                message=ChatMessage(content=completion.text),
                finish_reason=completion.finish_reason,
                logprobs=self._logprobs(
                    index, completion.token_ids, completion.logprobs, last=True
                ),
            )
            for index, completion in enumerate(completions)
        ]
        return ChatResponse(id=self._id, model=self._model, choices=choices, usage=usage)

    def first(self, index: int, chunk: Chunk) -> ChatChunk:
        """Return the first event of an answer, with the role."""
        return self._event(ChatChunkChoice(index=index, delta=Delta(role="assistant", content="")))

    def delta(self, index: int, chunk: Chunk) -> ChatChunk:
        """Return the event with the text of one step."""
        reason = None if chunk.completion is None else chunk.completion.finish_reason
        logprobs = self._logprobs(index, chunk.token_ids, chunk.logprobs, last=reason is not None)
        return self._event(
            ChatChunkChoice(
                index=index,
                delta=Delta(content=chunk.text),
                finish_reason=reason,
                logprobs=logprobs,
            )
        )

    def usage(self, usage: Usage) -> ChatChunk:
        """Return the last event, with the token counts."""
        return ChatChunk(id=self._id, model=self._model, choices=[], usage=usage)

    def _event(self, choice: ChatChunkChoice) -> ChatChunk:
        return ChatChunk(id=self._id, model=self._model, choices=[choice])

    def _logprobs(
        self, index: int, token_ids: list[int], logprobs: TokenLogprobs | None, last: bool
    ) -> ChatLogprobs | None:
        if logprobs is None or self._top is None:
            return None
        if index not in self._spellings:
            answer_request = self._answer_requests[index]
            self._spellings[index] = AnswerSpelling(
                self._tokenizer, answer_request.prompt, answer_request.params.skip_special_tokens
            )
        return chat_logprobs(self._spellings[index], token_ids, logprobs, self._top, last)


def _top_logprobs(body: ChatRequest, max_logprobs: int) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        raise ConfigError(
            f"top_logprobs: got {body.top_logprobs} without logprobs; expected both. Add logprobs:"
            " true."
        )
    if (body.top_logprobs or 0) > max_logprobs:
        raise ConfigError(
            f"top_logprobs: got {body.top_logprobs}; expected at most {max_logprobs}."
        )
    return body.top_logprobs or 0 if body.logprobs else None
