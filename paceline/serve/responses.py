"""Bodies of answers, as OpenAI's clients read them."""

from __future__ import annotations

import time
from typing import Annotated, Literal

from pydantic import BaseModel, Field

FinishReason = Annotated[str, Field(json_schema_extra={"enum": ["stop", "length"]})]


class PromptDetails(BaseModel):
    """Tokens of the prompts that were in the cache already, and were not computed again."""

    cached_tokens: int


class CompletionDetails(BaseModel):
    """Draft tokens of all answers: those the model kept, and those it did not."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(BaseModel):
    """Counts of a request: each prompt once, all of its answers."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class CompletionLogprobs(BaseModel):
    """Log-probabilities of a completion, in lists with an entry for each token.

    The first token of an echoed prompt has none: its entries are null.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TopLogprob(BaseModel):
    """A likely token."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A token of the answer, with the likeliest ones in its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """Log-probabilities of a chat's answer, by token."""

    content: list[TokenLogprob]


class CompletionChoice(BaseModel):
    """An answer to a prompt, or the next piece of one."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None


class ChatMessage(BaseModel):
    """What the model said."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    """An answer to a conversation."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason


class Delta(BaseModel):
    """The next piece of what the model says; the role comes with the first."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(BaseModel):
    """The next piece of an answer to a conversation."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None


class _AnswerBase(BaseModel):
    id: str
    created: int = Field(default_factory=lambda: int(time.time()))
    model: str
    usage: Usage | None = None


class CompletionResponse(_AnswerBase):
    """Answers to prompts, or an event of their stream."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]


class ChatResponse(_AnswerBase):
    """Answers to a conversation."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]


class ChatChunk(_AnswerBase):
    """An event of a chat's stream."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChatChunkChoice]


class Model(BaseModel):
    """A name under which the model is served; `max_model_len` is most tokens of prompt and
    answer.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "paceline"
    max_model_len: int


class Health(BaseModel):
    """Whether requests are taken, and how many answers are open."""

    status: Literal["ok", "draining"]
    open: int


class ModelList(BaseModel):
    """All names under which the model is served."""

    object: Literal["list"] = "list"
    data: list[Model]
