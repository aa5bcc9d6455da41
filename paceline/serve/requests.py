"""Define request bodies, with fields from OpenAI's API, vLLM and paceline.

The server rejects values of the wrong type and ignores unknown fields.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator

from paceline.serve.protocol_settings import MAX_N

_STRICT = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)
_INT64 = 2**63


def _absent(value: Any) -> None:
    if value:
        raise ValueError("no value, since this server does not support the field: leave it out")


def _always(value: Any) -> None:
    if value not in (None, True):
        raise ValueError("true, the only value that this server supports: leave it out")


Absent = Annotated[Any, AfterValidator(_absent)]
Always = Annotated[Any, AfterValidator(_always)]


class StreamOptions(BaseModel):
    """Options for streaming; `include_usage` adds a final event with token counts."""

    model_config = _STRICT
    include_usage: bool | None = None


class Speculation(BaseModel):
    """Drafter of one request: its name, options and maximum draft nodes per step."""

    model_config = ConfigDict(strict=True, extra="allow")
    drafter: str | None = None
    max_nodes: int | None = Field(None, ge=0, le=_INT64)


class JsonSchema(BaseModel):
    """A named JSON schema in OpenAI's format."""

    model_config = ConfigDict(strict=True, extra="ignore", populate_by_name=True)
    name: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(BaseModel):
    """Required format of an answer: text, a JSON object, or JSON that fits a schema."""

    model_config = _STRICT
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class GenerationRequest(BaseModel):
    """Fields that completion and chat requests share; null selects the default."""

    model_config = _STRICT
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    n: int | None = Field(None, ge=1, le=MAX_N)
    stop: str | list[str] | None = None
    seed: int | None = Field(None, ge=-_INT64, lt=_INT64)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, float] | None = None
    response_format: ResponseFormat | None = None
    # fields that vLLM also supports
    top_k: int | None = Field(None, ge=-1, lt=_INT64)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0)
    min_tokens: int | None = Field(None, ge=0)
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    priority: int | None = Field(None, ge=-_INT64, lt=_INT64)
    skip_special_tokens: bool | None = None
    # fields that only paceline supports
    speculation: bool | str | Speculation | None = None
    trace: bool | None = None
    # unsupported fields, which the server rejects because ignoring them would change the answer
    structured_outputs: Absent = None
    guided_json: Absent = None
    guided_regex: Absent = None
    guided_choice: Absent = None
    guided_grammar: Absent = None
    allowed_token_ids: Absent = None
    truncate_prompt_tokens: Absent = None
    prompt_logprobs: Absent = None
    include_stop_str_in_output: Absent = None


class CompletionRequest(GenerationRequest):
    """Body of a request to /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: int | None = Field(None, ge=0)
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0)
    best_of: int | None = Field(None, ge=1)
    suffix: Absent = None
    use_beam_search: Absent = None
    prompt_embeds: Absent = None
    add_special_tokens: Always = None


class TextPart(BaseModel):
    """A part of a message that contains text."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """A message in a conversation; the chat template may read additional fields."""

    model_config = ConfigDict(extra="allow")
    role: str = Field(min_length=1)
    content: str | Annotated[list[TextPart], Field(min_length=1)] | None = None


class Prediction(BaseModel):
    """Text that the client expects in the answer; drafters may draft from it."""

    model_config = _STRICT
    type: Literal["content"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        """Return the expected text, with its parts joined."""
        parts = self.content
        return parts if isinstance(parts, str) else "".join(part.text for part in parts)


# `LLM.chat_prompt` checks the messages, so the library and the server accept the same ones.
# `Message` only describes them in the API schema.
_Messages = Annotated[
    Any,
    PlainValidator(
        lambda value: value, json_schema_input_type=Annotated[list[Message], Field(min_length=1)]
    ),
]


class ChatRequest(GenerationRequest):
    """Body of a request to /v1/chat/completions."""

    messages: _Messages
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0)
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    prediction: Prediction | None = None
    # fields that vLLM also supports
    thinking_token_budget: int | None = Field(None, ge=0)
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    # unsupported fields, which the server rejects because ignoring them would change the answer
    functions: Absent = None
    audio: Absent = None
    documents: Absent = None
    chat_template: Absent = None
