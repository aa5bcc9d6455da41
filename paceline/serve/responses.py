"""Define response bodies in OpenAI's format."""

from __future__ import annotations

import time
from typing import Annotated, Literal

from pydantic import BaseModel, Field

FinishReason = Annotated[str, Field(json_schema_extra={"enum": ["stop", "length", "tool_calls"]})]


class PromptDetails(BaseModel):
    """Number of prompt tokens found in the prefix cache."""

    cached_tokens: int


class CompletionDetails(BaseModel):
    """Numbers of reasoning tokens, accepted draft tokens and rejected draft tokens.

    Each number is the sum over all answers to a request.
    """

    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(BaseModel):
    """Token counts of a request; a prompt with several answers counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class CompletionLogprobs(BaseModel):
    """Log-probabilities of a completion, as lists with one entry per token.

    The first token of an echoed prompt has no probability, so its entries are null.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TopLogprob(BaseModel):
    """A token among the top-k tokens at a position of the answer."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A token of the answer, with the top-k tokens at its position."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """Log-probabilities of a chat answer, with one entry per token."""

    content: list[TokenLogprob]


class CompletionChoice(BaseModel):
    """An answer to a prompt; in a stream, the next part of the answer."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None


class FunctionCall(BaseModel):
    """Name of a function, and its arguments as JSON text."""

    name: str
    arguments: str


class ToolCallBody(BaseModel):
    """A tool call in the model's message."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(BaseModel):
    """A message from the model; `content` is null if the model only called tools."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallBody] | None = None


class ChatChoice(BaseModel):
    """An answer to a conversation."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason


class FunctionDelta(BaseModel):
    """The next part of a function call; the first part contains the name."""

    name: str | None = None
    arguments: str = ""


class ToolCallDelta(BaseModel):
    """The next part of a tool call; the first part contains the id and the type."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class Delta(BaseModel):
    """The next part of a message; the first part contains the role."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(BaseModel):
    """The next part of an answer to a conversation."""

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
    """A response or a stream event from /v1/completions."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]


class ChatResponse(_AnswerBase):
    """A response from /v1/chat/completions."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]


class ChatChunk(_AnswerBase):
    """A stream event from /v1/chat/completions."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChatChunkChoice]


class Model(BaseModel):
    """A served model; `max_model_len` limits prompt and answer together, in tokens."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "paceline"
    max_model_len: int


class Health(BaseModel):
    """The server's state, and the number of open answers."""

    status: Literal["ok", "draining"]
    open: int


class ModelList(BaseModel):
    """The names under which clients can request the model."""

    object: Literal["list"] = "list"
    data: list[Model]
