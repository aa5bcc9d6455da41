"""/v1/chat/completions: conversations that go on."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from paceline.errors import ConfigError
from paceline.llm import Chunk, Completion
from paceline.serve.answers import AnswerRequest
from paceline.serve.logprobs import Found, Spelling, of_chat
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
    """The endpoint for `serving`."""
    router = APIRouter()

    @router.post(
        "/v1/chat/completions",
        response_model=None,
        responses={200: {"model": ChatResponse, **EVENTS}},
    )
    async def chat(body: ChatRequest, request: Request) -> Response:
        """Go on with a conversation."""
        serving.check_model(body.model)
        top = _top_logprobs(body, serving.settings.max_logprobs)
        serving.check_answers(body.n or 1)
        longest = body.max_completion_tokens or body.max_tokens or serving.llm.max_length
        params = await serving.aside(lambda: serving.sampler.params(body, longest, top))
        prompt = await serving.aside(lambda: prompt_of(serving, body))
        asked = [AnswerRequest(prompt, one) for one in params]
        return await respond(
            serving, request, body, [prompt], asked, ChatForm(serving, request.state.id, asked, top)
        )

    return router


def prompt_of(serving: Serving, body: ChatRequest) -> list[int]:
    """Token ids of a conversation.

    Raises:
        ConfigError: the template refuses it. ApiError: it is too long.
    """
    ids = serving.llm.chat_prompt(
        body.messages,
        body.chat_template_kwargs,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
    )
    serving.check_prompt(ids)
    return ids


class ChatForm:
    """Answers as a chat's messages.

    Args:
        asked: the answers.
        top: how many of the likeliest tokens are told in each place.
    """

    def __init__(
        self, serving: Serving, id: str, asked: Sequence[AnswerRequest], top: int | None
    ) -> None:
        self._model, self._id = serving.names[0], f"chatcmpl-{id}"
        self._tokenizer, self._asked = serving.llm.tokenizer, asked
        self._spellings: dict[int, Spelling] = {}
        self._top = top

    def whole(self, completions: Sequence[Completion], usage: Usage) -> ChatResponse:
        """All answers."""
        choices = [
            ChatChoice(
                index=place,
                message=ChatMessage(content=one.text),
                finish_reason=one.finish_reason,
                logprobs=self._logprobs(place, one.token_ids, one.logprobs, last=True),
            )
            for place, one in enumerate(completions)
        ]
        return ChatResponse(id=self._id, model=self._model, choices=choices, usage=usage)

    def opening(self, place: int, chunk: Chunk) -> ChatChunk:
        """Who speaks."""
        return self._event(ChatChunkChoice(index=place, delta=Delta(role="assistant", content="")))

    def piece(self, place: int, chunk: Chunk) -> ChatChunk:
        """What a step has added."""
        reason = None if chunk.completion is None else chunk.completion.finish_reason
        logprobs = self._logprobs(place, chunk.token_ids, chunk.logprobs, last=reason is not None)
        return self._event(
            ChatChunkChoice(
                index=place,
                delta=Delta(content=chunk.text),
                finish_reason=reason,
                logprobs=logprobs,
            )
        )

    def closing(self, usage: Usage) -> ChatChunk:
        """The counts."""
        return ChatChunk(id=self._id, model=self._model, choices=[], usage=usage)

    def _event(self, choice: ChatChunkChoice) -> ChatChunk:
        return ChatChunk(id=self._id, model=self._model, choices=[choice])

    def _logprobs(
        self, place: int, token_ids: list[int], found: Found | None, last: bool
    ) -> ChatLogprobs | None:
        if found is None or self._top is None:
            return None
        if place not in self._spellings:
            asked = self._asked[place]
            self._spellings[place] = Spelling(
                self._tokenizer, asked.prompt, asked.params.skip_special_tokens
            )
        return of_chat(self._spellings[place], token_ids, found, self._top, last)


def _top_logprobs(body: ChatRequest, most: int) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        raise ConfigError(
            f"top_logprobs: got {body.top_logprobs} without logprobs; expected both. Add logprobs:"
            " true."
        )
    if (body.top_logprobs or 0) > most:
        raise ConfigError(f"top_logprobs: got {body.top_logprobs}; expected at most {most}.")
    return body.top_logprobs or 0 if body.logprobs else None
