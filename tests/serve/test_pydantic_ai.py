"""Test agents of the package pydantic-ai; skipped if it is not installed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, Literal

import httpx2
import pytest
from pydantic import BaseModel

from tests.support.serving import KEY, Served

pytest.importorskip("pydantic_ai")
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of pydantic-ai


class Weather(BaseModel):
    city: Literal["Zürich", "Paris"]
    days: Literal[1, 2]


@pytest.fixture(autouse=True)
def _event_loop() -> Iterator[None]:
    """Close the event loop of `run_sync`, which the package leaves open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


@pytest.fixture(params=["chat", "responses"])
def model(request: pytest.FixtureRequest, server: Served) -> Any:
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    # Do not reuse connections, which would outlive their event loop.
    http = httpx2.AsyncClient(limits=httpx2.Limits(max_keepalive_connections=0), timeout=90)
    provider = OpenAIProvider(base_url=f"{server.url}/v1", api_key=KEY, http_client=http)
    kind = OpenAIChatModel if request.param == "chat" else OpenAIResponsesModel
    return kind("demo", provider=provider, settings={"max_tokens": 200, "temperature": 0.0})


def agent_of(model: Any, calls: list[str], **settings: Any) -> Any:
    """Return an agent with one tool, whose answer is a call for `Weather`."""
    from pydantic_ai import Agent

    agent: Any = Agent(model, output_type=Weather, retries=2, model_settings=settings)

    def get_time(zone: Literal["UTC", "CET"]) -> str:
        """Return the time in a zone."""
        calls.append(zone)
        return "12:00"

    agent.tool_plain(get_time)
    return agent


def test_output_as_a_required_call(model: Any) -> None:
    """Every output is a call; the model may repeat a call until the request limit."""
    from pydantic_ai.exceptions import AgentRunError
    from pydantic_ai.usage import UsageLimits

    calls: list[str] = []
    agent = agent_of(model, calls, parallel_tool_calls=False)
    output: Any = None
    with contextlib.suppress(AgentRunError):
        limits = UsageLimits(request_limit=3)
        output = agent.run_sync("What is the weather?", usage_limits=limits).output
    assert isinstance(output, Weather) or len(calls) >= 2
    assert set(calls) <= {"UTC", "CET"}


def test_native_output(model: Any) -> None:
    """The output is JSON under a schema instead of a call."""
    from pydantic_ai import Agent, NativeOutput

    agent: Any = Agent(model, output_type=NativeOutput(Weather))
    assert isinstance(agent.run_sync("What is the weather?").output, Weather)


def test_text_and_its_stream(model: Any) -> None:
    from pydantic_ai import Agent

    agent: Any = Agent(model, model_settings={"max_tokens": 8})
    whole = agent.run_sync("What is 2 + 3?")
    assert whole.usage.output_tokens == 8

    async def streamed() -> str:
        async with agent.run_stream("What is 2 + 3?") as stream:
            text: str = await stream.get_output()
            return text

    assert asyncio.run(streamed()) == whole.output


def test_streamed_output(model: Any) -> None:
    """The stream ends in a call, whose arguments are valid."""
    from pydantic_ai import Agent

    agent: Any = Agent(model, output_type=Weather, model_settings={"parallel_tool_calls": False})

    async def streamed() -> Any:
        async with agent.run_stream("What is the weather?") as stream:
            return await stream.get_output()

    assert isinstance(asyncio.run(streamed()), Weather)
