"""What a server owes its users besides speed: a second turn that begins at once, streams that do
not stall, flat memory.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Sequence

from paceline.bench.memory import resident
from paceline.bench.serving.clients import Reply, ask, waited
from paceline.bench.serving.prompts import grown
from paceline.bench.serving.result import Intrusion, SecondTurn, Soak
from paceline.bench.serving.settings import ServingConfig
from paceline.bench.serving.transports import ClientRequest, Transport
from paceline.core.request import SamplingParams
from paceline.drafters import PLAIN
from paceline.errors import CapacityError
from paceline.llm import LLM
from paceline.report.prompts import Prompt

_TIMES = 5  # second turns that are timed, each way
_TURN_TOKENS = 16
_STREAM_TOKENS = 256
_PAUSE = 0.5  # seconds between prompts that arrive beside a stream
_SOAK_PAUSE = 5.0  # seconds between two looks at the memory
_ABORTED = 0.1  # of the answers, after a few pieces


def second_turn(config: ServingConfig, prompts: Sequence[Prompt], llm: LLM) -> SecondTurn:
    """Time the first token of a turn behind one that has just been answered, and of the same behind
    one that is new.

    Raises:
        CapacityError: no room for so many tokens.
    """
    keeping = LLM(
        llm.model.model,
        PLAIN,
        tokenizer=llm.tokenizer,
        max_batch=2,
        keep_prefixes=_TIMES,
        batch_invariant=config.models.invariance,
    )
    before, room = config.load.turn, llm.max_length - 4 * _TURN_TOKENS
    reused, afresh = [], []
    for number in range(_TIMES):
        place = number % len(prompts)
        whole = grown(prompts, place, before, llm.tokenizer, room)
        one, other = (
            _turned(whole, (2 * number + side + 1) * before // (2 * _TIMES + 2)) for side in (0, 1)
        )
        said = keeping.generate([one], SamplingParams(_TURN_TOKENS))[0].token_ids
        more = [*said, *grown(prompts, place, None, llm.tokenizer, _TURN_TOKENS)]
        reused.append(_first_token(keeping, [*one, *more]))
        afresh.append(_first_token(keeping, [*other, *more]))
    return SecondTurn(
        before,
        *(tuple(values) for pairs in (reused, afresh) for values in zip(*pairs, strict=True)),
    )


def _turned(ids: list[int], by: int) -> list[int]:
    """The same tokens, beginning elsewhere: a text that no other begins like."""
    return ids[by:] + ids[:by]


def _first_token(llm: LLM, ids: list[int]) -> tuple[float, int]:
    """Seconds to the first token, and how many tokens of the prompt were in the cache."""
    start = time.perf_counter()
    chunks = llm.stream(ids, SamplingParams(2, ignore_eos=True))
    next(chunks)
    seconds = time.perf_counter() - start
    (completion,) = (chunk.completion for chunk in chunks if chunk.completion is not None)
    return seconds, completion.stats.cached_tokens


def intrusion(
    transport: Transport, config: ServingConfig, prompts: Sequence[Prompt], llm: LLM
) -> Intrusion:
    """Time the gaps of a stream of plain decoding, alone and while long prompts come one after the
    other.

    Raises:
        CapacityError: no room for such prompts or such a stream.
    """
    room = llm.max_length - _TURN_TOKENS
    short = grown(prompts, 0, None, llm.tokenizer, room)
    length = min(_STREAM_TOKENS, llm.max_length - len(short))
    if length < 2:
        raise CapacityError(
            f"bench: got a context of {llm.max_length} tokens; expected room for a stream. Leave"
            " intruders out."
        )
    stream = ClientRequest("", short, length, PLAIN, whole=True)
    long = [
        ClientRequest(
            "",
            grown(prompts, place % len(prompts), config.load.intruders, llm.tokenizer, room, place),
            2,
            PLAIN,
        )
        for place in range(len(prompts))
    ]
    alone = waited(ask(transport, stream))
    before = llm.load.prompt_tokens
    beside = waited(_disturbed(transport, stream, long))
    begun = (llm.load.prompt_tokens - before - len(short)) // len(long[0].token_ids)
    return Intrusion(config.load.intruders, begun, _gaps(alone), _gaps(beside))


async def _disturbed(
    transport: Transport, stream: ClientRequest, long: Sequence[ClientRequest]
) -> Reply:
    async def intrude() -> None:
        place = 0
        while True:
            await asyncio.sleep(_PAUSE)
            await ask(transport, long[place % len(long)])
            place += 1

    others = asyncio.create_task(intrude())
    try:
        return await ask(transport, stream)
    finally:
        others.cancel()
        await asyncio.gather(others, return_exceptions=True)


def soak(
    transport: Transport, requests: Sequence[ClientRequest], users: int, minutes: float, llm: LLM
) -> Soak:
    """Let users ask at random, some of whom leave early, and look at the memory of this process."""
    return waited(_soak(transport, requests, users, 60 * minutes, llm))


async def _soak(
    transport: Transport, requests: Sequence[ClientRequest], users: int, seconds: float, llm: LLM
) -> Soak:
    start, counts = time.perf_counter(), [0, 0]
    sizes: list[tuple[float, int]] = []

    async def user(number: int) -> None:
        chance = random.Random(number)
        while time.perf_counter() - start < seconds:
            leaves = chance.random() < _ABORTED
            await ask(
                transport, chance.choice(requests), chance.randrange(1, 6) if leaves else None
            )
            counts[leaves] += 1

    async def look() -> None:
        while True:
            sizes.append((round(time.perf_counter() - start, 1), resident()))
            await asyncio.sleep(min(_SOAK_PAUSE, seconds / 20))

    looking = asyncio.create_task(look())
    async with asyncio.TaskGroup() as group:
        for number in range(users):
            group.create_task(user(number))
    looking.cancel()
    for _ in range(100):  # those that were left are freed behind the step that is being made
        if not llm.model.open_sequences:
            break
        await asyncio.sleep(0.1)
    return Soak(tuple(sizes), counts[0], counts[1], llm.model.open_sequences)


def _gaps(reply: Reply) -> tuple[float, ...]:
    return tuple(after - before for before, after in itertools.pairwise(reply.times))
