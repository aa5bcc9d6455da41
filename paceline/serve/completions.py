"""/v1/completions: texts that go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from paceline.errors import ConfigError
from paceline.llm import Chunk, Completion
from paceline.serve.answers import AnswerRequest
from paceline.serve.logprobs import Found, Spelling, of_completion
from paceline.serve.requests import CompletionRequest
from paceline.serve.responding import EVENTS, respond
from paceline.serve.responses import CompletionChoice, CompletionLogprobs, CompletionResponse, Usage
from paceline.serve.serving import Serving
from paceline.text.detokenizer import text_of
from paceline.util.tokens import text_ids

_MAX_TOKENS = 16  # OpenAI's and vLLM's default
Prompt = str | list[int]
PromptFound = Sequence[Mapping[int, float] | None]


def completion_routes(serving: Serving) -> APIRouter:
    """The endpoint for `serving`."""
    router = APIRouter()

    @router.post(
        "/v1/completions",
        response_model=None,
        responses={200: {"model": CompletionResponse, **EVENTS}},
    )
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Go on with texts."""
        serving.check_model(body.model)
        _check(body, serving.settings.max_logprobs)
        prompts = _prompts(body.prompt)
        serving.check_answers(len(prompts) * (body.n or 1))
        longest = _MAX_TOKENS if body.max_tokens is None else body.max_tokens
        scored = body.logprobs if body.echo else None
        params = await serving.aside(
            lambda: serving.sampler.params(body, longest, body.logprobs, scored)
        )
        ids = [
            await serving.aside(lambda prompt=prompt: _ids(serving, prompt, longest))  # type: ignore[misc]
            for prompt in prompts
        ]
        asked = [AnswerRequest(one, each) for one in ids for each in params]
        echoed = [prompt if body.echo else None for prompt in prompts for _ in params]
        return await respond(
            serving,
            request,
            body,
            ids,
            asked,
            CompletionForm(serving, request.state.id, asked, echoed),
        )

    return router


class CompletionForm:
    """Answers as completions.

    Args:
        asked: the answers.
        echoed: of each answer, the prompt before its text, as it was sent; None = no prompt. Token
            ids may be of no token until the first answer is there.
    """

    def __init__(
        self, serving: Serving, id: str, asked: Sequence[AnswerRequest], echoed: list[Prompt | None]
    ) -> None:
        self._tokenizer, self._model, self._id = (
            serving.llm.tokenizer,
            serving.names[0],
            f"cmpl-{id}",
        )
        self._asked, self._echoed = asked, echoed
        self._spellings: dict[int, Spelling] = {}
        self._offsets: dict[int, int] = {}  # characters before the next token, by place

    def whole(self, completions: Sequence[Completion], usage: Usage) -> CompletionResponse:
        """All answers."""
        choices = [
            CompletionChoice(
                index=place,
                text=self._echo(place) + one.text,
                finish_reason=one.finish_reason,
                logprobs=_joined(
                    self._scores(place, one.prompt_logprobs),
                    self._logprobs(place, one.token_ids, one.logprobs, last=True),
                ),
            )
            for place, one in enumerate(completions)
        ]
        return CompletionResponse(id=self._id, model=self._model, choices=choices, usage=usage)

    def opening(self, place: int, chunk: Chunk) -> CompletionResponse | None:
        """The prompt, where it is echoed."""
        if self._echoed[place] is None:
            return None
        scores = self._scores(place, chunk.prompt_logprobs)
        return self._event(
            CompletionChoice(
                index=place, text=self._echo(place), logprobs=scores, finish_reason=None
            )
        )

    def piece(self, place: int, chunk: Chunk) -> CompletionResponse:
        """What a step has added."""
        reason = None if chunk.completion is None else chunk.completion.finish_reason
        logprobs = self._logprobs(place, chunk.token_ids, chunk.logprobs, last=reason is not None)
        return self._event(
            CompletionChoice(index=place, text=chunk.text, finish_reason=reason, logprobs=logprobs)
        )

    def closing(self, usage: Usage) -> CompletionResponse:
        """The counts."""
        return CompletionResponse(id=self._id, model=self._model, choices=[], usage=usage)

    def _event(self, choice: CompletionChoice) -> CompletionResponse:
        return CompletionResponse(id=self._id, model=self._model, choices=[choice])

    def _logprobs(
        self, place: int, token_ids: list[int], found: Found | None, last: bool
    ) -> CompletionLogprobs | None:
        if found is None:
            return None
        if place not in self._spellings:
            asked = self._asked[place]
            self._spellings[place] = Spelling(
                self._tokenizer, asked.prompt, asked.params.skip_special_tokens
            )
            self._offsets[place] = len(self._echo(place))
        made = of_completion(self._spellings[place], token_ids, found, self._offsets[place], last)
        self._offsets[place] += sum(map(len, made.tokens))
        return made

    def _scores(self, place: int, found: PromptFound | None) -> CompletionLogprobs | None:
        """Return the log-probabilities of an echoed prompt."""
        sent, asked = self._echoed[place], self._asked[place]
        if sent is None or found is None:
            return None
        rows = [
            {asked.prompt[0]: 0.0},
            *(row for row in found if row is not None),
        ]  # the first one is replaced
        if isinstance(sent, str):
            made = self._spell_sent(sent, asked.prompt, rows)
        else:
            made = of_completion(
                Spelling(self._tokenizer, (), asked.params.skip_special_tokens),
                asked.prompt,
                rows,
                0,
            )
        made.token_logprobs[0] = made.top_logprobs[0] = None
        return made

    def _spell_sent(self, sent: str, token_ids: list[int], rows: Found) -> CompletionLogprobs:
        """Spell a text as it was sent: its special tokens are part of it, those that the
        tokenizer adds are not.
        """
        for hides in (True, False):
            made = of_completion(Spelling(self._tokenizer, (), hides), token_ids, rows, 0)
            spelled = "".join(made.tokens)
            if spelled == sent:
                break
        added = len(spelled) - len(sent) if spelled.endswith(sent) else 0
        made.text_offset = [max(0, offset - added) for offset in made.text_offset]
        return made

    def _echo(self, place: int) -> str:
        sent = self._echoed[place]
        if sent is None or isinstance(sent, str):
            return sent or ""
        return text_of(self._tokenizer, sent, self._asked[place].params.skip_special_tokens)


def _joined(
    prompt: CompletionLogprobs | None, answer: CompletionLogprobs | None
) -> CompletionLogprobs | None:
    """Return the log-probabilities of an echoed prompt and its answer in one."""
    if prompt is None or answer is None:
        return answer
    both = {name: values + getattr(answer, name) for name, values in prompt}
    return CompletionLogprobs(**both)


def _check(body: CompletionRequest, most: int) -> None:
    if body.logprobs is not None and body.logprobs > most:
        raise ConfigError(f"logprobs: got {body.logprobs}; expected at most {most}.")
    if body.best_of not in (None, body.n or 1):
        raise ConfigError(f"best_of: got {body.best_of}; expected n, {body.n or 1}. Leave it out.")


def _prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> list[Prompt]:
    """The single prompts, each a text or token ids."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise ConfigError(
            "prompt: got an empty list; expected a text, token ids, or several of them."
        )
    ids = [one for one in prompt if isinstance(one, int)]
    return [ids] if ids else [one for one in prompt if not isinstance(one, int)]


def _ids(serving: Serving, prompt: Prompt, max_tokens: int) -> list[int]:
    ids = text_ids(serving.llm.tokenizer, prompt, "prompt") if isinstance(prompt, str) else prompt
    serving.check_prompt(ids, max_tokens)
    return ids
