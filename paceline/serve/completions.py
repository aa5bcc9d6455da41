"""/v1/completions: texts that go on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as ListLike

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from paceline.common.tokens import text_ids
from paceline.errors import ConfigError
from paceline.llm import Chunk, Completion
from paceline.serve.answers import Asked
from paceline.serve.logprobs import Found, of_completion
from paceline.serve.requests import CompletionRequest
from paceline.serve.responding import EVENTS, respond
from paceline.serve.responses import CompletionChoice, CompletionLogprobs, CompletionResponse, Usage
from paceline.serve.serving import Serving

_MAX_TOKENS = 16  # OpenAI's and vLLM's default
Prompt = str | list[int]


def completion_routes(serving: Serving) -> APIRouter:
    """The endpoint for `serving`."""
    router = APIRouter()

    @router.post("/v1/completions", response_model=None, responses={200: {"model": CompletionResponse, **EVENTS}})
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Go on with texts."""
        serving.check_model(body.model)
        _check(body, serving.settings.max_logprobs)
        prompts = _prompts(body.prompt)
        serving.check_answers(len(prompts) * (body.n or 1))
        params = await serving.aside(lambda: serving.sampler.params(body, body.max_tokens or _MAX_TOKENS, body.logprobs))
        ids = [await serving.aside(lambda prompt=prompt: _ids(serving, prompt)) for prompt in prompts]  # type: ignore[misc]
        asked = [Asked(one, each) for one in ids for each in params]
        echoed = [prompt if body.echo else "" for prompt in prompts for _ in params]
        return await respond(serving, request, body, ids, asked, CompletionForm(serving, request.state.id, echoed))

    return router


class CompletionForm:
    """Answers as completions.

    Args:
        echoed: what stands before each answer's text. Token ids are spelled with the answer, when they are known to be some.
    """

    def __init__(self, serving: Serving, id: str, echoed: list[Prompt]) -> None:
        self._serving, self._model, self._id = serving, serving.names[0], f"cmpl-{id}"
        self._echoed = echoed
        self._offsets: defaultdict[int, int] = defaultdict(int)  # characters said so far, by place

    def whole(self, completions: ListLike[Completion], usage: Usage) -> CompletionResponse:
        """All answers."""
        choices = [
            CompletionChoice(
                index=place, text=self._echo(place) + one.text, finish_reason=one.finish_reason,
                logprobs=self._logprobs(place, one.token_ids, one.logprobs),
            )
            for place, one in enumerate(completions)
        ]  # fmt: skip
        return CompletionResponse(id=self._id, model=self._model, choices=choices, usage=usage)

    def opening(self, place: int) -> CompletionResponse | None:
        """The prompt, where it is echoed."""
        if not self._echoed[place]:
            return None
        return self._event(CompletionChoice(index=place, text=self._echo(place), finish_reason=None))

    def piece(self, place: int, chunk: Chunk) -> CompletionResponse:
        """What a step has added."""
        reason = None if chunk.completion is None else chunk.completion.finish_reason
        logprobs = self._logprobs(place, chunk.token_ids, chunk.logprobs)
        return self._event(CompletionChoice(index=place, text=chunk.text, finish_reason=reason, logprobs=logprobs))

    def closing(self, usage: Usage) -> CompletionResponse:
        """The counts."""
        return CompletionResponse(id=self._id, model=self._model, choices=[], usage=usage)

    def _event(self, choice: CompletionChoice) -> CompletionResponse:
        return CompletionResponse(id=self._id, model=self._model, choices=[choice])

    def _logprobs(self, place: int, token_ids: list[int], found: Found | None) -> CompletionLogprobs | None:
        if found is None:
            return None
        made = of_completion(self._serving.spell, token_ids, found, self._offsets[place])
        self._offsets[place] += sum(map(len, made.tokens))
        return made

    def _echo(self, place: int) -> str:
        prompt = self._echoed[place]
        return prompt if isinstance(prompt, str) else str(self._serving.llm.tokenizer.decode(prompt, skip_special_tokens=True))


def _check(body: CompletionRequest, most: int) -> None:
    if body.logprobs is not None and body.logprobs > most:
        raise ConfigError(f"logprobs: got {body.logprobs}; expected at most {most}.")
    if body.echo and body.logprobs is not None:
        raise ConfigError("logprobs: got them with echo; expected one of both, since prompts have none here. Leave one out.")
    if body.best_of not in (None, body.n or 1):
        raise ConfigError(f"best_of: got {body.best_of}; expected n, {body.n or 1}. Leave it out.")


def _prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> list[Prompt]:
    """The single prompts, each a text or token ids."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise ConfigError("prompt: got an empty list; expected a text, token ids, or several of them.")
    ids = [one for one in prompt if isinstance(one, int)]
    return [ids] if ids else [one for one in prompt if not isinstance(one, int)]


def _ids(serving: Serving, prompt: Prompt) -> list[int]:
    ids = text_ids(serving.llm.tokenizer, prompt, "prompt") if isinstance(prompt, str) else prompt
    serving.check_prompt(ids)
    return ids
