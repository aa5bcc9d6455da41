"""Define response bodies in OpenAI's format."""

from __future__ import annotations

import time
from typing import Annotated, Literal

from pydantic import BaseModel, Field

FinishReason = Annotated[str, Field(json_schema_extra={"enum": ["stop", "length", "tool_calls"]})]


class PromptDetails(BaseModel):
    """Number of prompt tokens that were found in the prefix cache."""

    cached_tokens: int


class CompletionDetails(BaseModel):
    """Numbers of accepted and rejected draft tokens in all answers."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(BaseModel):
    """Token counts of a request; each prompt counts once."""

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
    """Top-k token at a position."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """Token in the answer, with the top-k tokens at its position."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """Log-probabilities of a chat answer, with one entry per token."""

    content: list[TokenLogprob]


class CompletionChoice(BaseModel):
    """Answer to a prompt, or the next part of its event stream."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None


class FunctionCall(BaseModel):
    """Name of a function, and its arguments as JSON text."""

    name: str
    arguments: str


class ToolCallBody(BaseModel):
    """Tool call of a message."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(BaseModel):
    """Message that the model generated; content is null if it only calls tools."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallBody] | None = None


class ChatChoice(BaseModel):
    """Answer to a conversation."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason


class FunctionDelta(BaseModel):
    """Next part of a function call; the first part contains the name."""

    name: str | None = None
    arguments: str = ""


class ToolCallDelta(BaseModel):
    """Next part of a tool call; the first part contains the id and the type."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class Delta(BaseModel):
    """Next part of a message; the first part contains the role."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(BaseModel):
    """Next part of an answer to a conversation."""

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
    """Response or stream event of /v1/completions."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]


class ChatResponse(_AnswerBase):
    """Response of /v1/chat/completions."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]


class ChatChunk(_AnswerBase):
    """Stream event of /v1/chat/completions."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChatChunkChoice]


class Model(BaseModel):
    """Name of a served model; `max_model_len` limits prompt and answer together."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "paceline"
    max_model_len: int


class Health(BaseModel):
    """State of the server and its number of open answers."""

    status: Literal["ok", "draining"]
    open: int


class ModelList(BaseModel):
    """List of the names under which the model is served."""

    object: Literal["list"] = "list"
    data: list[Model]
