"""Measure prefix reuse, delays in streamed answers, and memory use of a server under load.

    python scripts/serving_studies.py smollm2 --dtype bfloat16 --threads 1 --turn 2000
    python scripts/serving_studies.py smollm2 --intruders 4000 --json duties.json
    python scripts/serving_studies.py smollm2 --users 8 --soak 10 --drafters none,auto,sssd

`--turn` times the first token of a chat's second turn, with and without prefix reuse. `--intruders`
times the gaps in a stream, with and without arriving long prompts. `--soak` runs a mixed load with
aborted answers for some minutes, and records the memory use. `scripts/update_benchmarks.py` writes
the notes to docs/benchmarks/under-load.md.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from paceline.bench.environment import peak_memory
from paceline.bench.models import torch_threads
from paceline.bench.serving.clients import Reply, ask, waited
from paceline.bench.serving.prompts import grown
from paceline.bench.serving.result import percentile
from paceline.bench.serving.run import engine_of
from paceline.bench.serving.settings import LoadOptions, ServingConfig
from paceline.bench.serving.transports import ClientRequest, Transport, transport_to
from paceline.core.sampling_params import SamplingParams
from paceline.drafters import PLAIN
from paceline.llm import LLM
from paceline.report.prompts import Prompt, load_prompts
from paceline.util.options import ModelOptions, PromptOptions

TIMED_TURNS = 5  # Second turns that are timed, each with and without prefix reuse.
TURN_TOKENS = 16  # Tokens of the answer and of the text of a second turn.
STREAM_TOKENS = 256  # Tokens of the stream whose gaps are measured.
INTRUSION_PAUSE_SECONDS = 0.5  # Time between prompts that arrive during the stream.
MEMORY_SAMPLE_SECONDS = 5.0  # Time between two samples of the memory.
ABORTED_SHARE = 0.1  # Share of the answers that clients abort after a few chunks.


def main(arguments: Sequence[str] | None = None) -> list[str]:
    """Run the studies, and return a sentence about each result."""
    args = _parser().parse_args(arguments)
    config = ServingConfig(
        ModelOptions(args.model, dtype=args.dtype, threads=args.threads, unpack=True),
        PromptOptions(tuple(args.prompts), limit=args.limit),
        tuple(args.drafters.split(",")),
        LoadOptions(users=str(max(args.users, 2))),
        max_new_tokens=args.max_new_tokens,
    )
    notes = []
    with torch_threads(args.threads):
        llm, _ = engine_of(config)
        prompts = load_prompts(config.selection.prompts, config.selection.limit)
        with transport_to(llm, config) as transport:
            if args.turn:
                notes.append(second_turn(config, prompts, llm, args.turn))
            if args.intruders:
                notes.append(intrusion(transport, prompts, llm, args.intruders))
            if args.soak:
                notes.append(waited(soak(transport, config, prompts, llm, args)))
    if args.json:
        words = ["python", "scripts/serving_studies.py", *(arguments or sys.argv[1:])]
        document = {"kind": "serving studies", "command": shlex.join(words), "notes": notes}
        args.json.write_text(json.dumps(document, indent=1) + "\n")
    print("\n".join(notes))
    return notes


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("model")
    add("--dtype", default="auto")
    add("--threads", type=int)
    add("--prompts", nargs="*", default=())
    add("--limit", type=int, default=0)
    add("--max-new-tokens", type=int, default=48)
    add("--drafters", default="none,auto", help="drafters of the soak")
    add("--users", type=int, default=1, help="users of the soak")
    add("--turn", type=int, default=0, help="tokens before the second turn")
    add("--intruders", type=int, default=0, help="tokens in each arriving prompt")
    add("--soak", type=float, default=0.0, help="minutes of the mixed load")
    add("--json", type=Path)
    return parser


def second_turn(config: ServingConfig, prompts: Sequence[Prompt], llm: LLM, before: int) -> str:
    """Time the first token of a second turn, with and without a cached first turn."""
    keeping = LLM(
        llm.model.model,
        PLAIN,
        tokenizer=llm.tokenizer,
        max_batch=2,
        keep_prefixes=TIMED_TURNS,
        batch_invariant=config.models.invariance,
    )
    room = llm.max_length - 4 * TURN_TOKENS
    reused, recomputed = [], []
    for number in range(TIMED_TURNS):
        index = number % len(prompts)
        text = grown(prompts, index, before, llm.tokenizer, room)
        cached, uncached = (
            _turned(text, (2 * number + side + 1) * before // (2 * TIMED_TURNS + 2))
            for side in (0, 1)
        )
        answer_ids = keeping.generate([cached], SamplingParams(TURN_TOKENS))[0].token_ids
        suffix = [*answer_ids, *grown(prompts, index, None, llm.tokenizer, TURN_TOKENS)]
        reused.append(_first_token(keeping, [*cached, *suffix]))
        recomputed.append(_first_token(keeping, [*uncached, *suffix]))
    (fast, hits), (slow, misses) = (zip(*pairs, strict=True) for pairs in (reused, recomputed))
    ratio = percentile(slow, 0.5) / percentile(fast, 0.5)
    return (
        f"The first prompt of a chat has {before} tokens. With prefix reuse, the cache contains"
        f" {min(hits)} tokens of the second prompt, and the first token of the second answer takes"
        f" {_ms(fast, 0.5)}. Without prefix reuse, the cache contains {max(misses)} of these"
        f" tokens, and the first token takes {_ms(slow, 0.5)}, {ratio:.1f} times the time with"
        f" reuse. Each time is the median of {TIMED_TURNS} measurements."
    )


def _turned(ids: list[int], by: int) -> list[int]:
    """Rotate the tokens, so that no cached prefix matches them."""
    return ids[by:] + ids[:by]


def _first_token(llm: LLM, ids: list[int]) -> tuple[float, int]:
    """Return the seconds to the first token, and the number of cached prompt tokens."""
    start = time.perf_counter()
    chunks = llm.stream(ids, SamplingParams(2, ignore_eos=True))
    next(chunks)
    seconds = time.perf_counter() - start
    (completion,) = (chunk.completion for chunk in chunks if chunk.completion is not None)
    return seconds, completion.stats.cached_tokens


def intrusion(transport: Transport, prompts: Sequence[Prompt], llm: LLM, tokens: int) -> str:
    """Time the gaps between a stream's chunks, with and without arriving long prompts."""
    room = llm.max_length - TURN_TOKENS
    short = grown(prompts, 0, None, llm.tokenizer, room)
    length = min(STREAM_TOKENS, llm.max_length - len(short))
    stream = ClientRequest("", short, length, PLAIN, ignore_eos=True)
    long = [
        ClientRequest("", grown(prompts, index, tokens, llm.tokenizer, room, index), 2, PLAIN)
        for index in range(len(prompts))
    ]
    alone = _gaps(waited(ask(transport, stream)))
    before = llm.load.prompt_tokens
    disturbed = _gaps(waited(_disturbed(transport, stream, long)))
    begun = (llm.load.prompt_tokens - before - len(short)) // len(long[0].token_ids)
    ratio = percentile(disturbed, 0.99) / percentile(alone, 0.99)
    return (
        "Without other load, the 99th percentile of the gaps between the chunks of a stream is"
        f" {_ms(alone, 0.99)}, and the longest gap is {_ms(alone, 1)}. In a second run,"
        f" prompts of {tokens} tokens arrive one after the other during the stream. Before the"
        f" stream ends, the server admits {begun} of these prompts. The 99th percentile of the gaps"
        f" then rises to {_ms(disturbed, 0.99)}, {ratio:.1f} times the value without load, and"
        f" the longest gap is {_ms(disturbed, 1)}."
    )


async def _disturbed(
    transport: Transport, stream: ClientRequest, long: Sequence[ClientRequest]
) -> Reply:
    async def intrude() -> None:
        for request in itertools.cycle(long):
            await asyncio.sleep(INTRUSION_PAUSE_SECONDS)
            await ask(transport, request)

    others = asyncio.create_task(intrude())
    try:
        return await ask(transport, stream)
    finally:
        others.cancel()
        await asyncio.gather(others, return_exceptions=True)


async def soak(
    transport: Transport,
    config: ServingConfig,
    prompts: Sequence[Prompt],
    llm: LLM,
    args: argparse.Namespace,
) -> str:
    """Simulate users who abort some requests at random, and record the memory use."""
    room, length = llm.max_length - config.max_new_tokens, config.max_new_tokens
    requests = [
        ClientRequest(prompt.id, grown(prompts, index, None, llm.tokenizer, room), length, drafter)
        for index, prompt in enumerate(prompts)
        for drafter in config.drafters
    ]
    start, seconds, counts = time.perf_counter(), 60 * args.soak, [0, 0]
    sizes: list[float] = []

    async def user(number: int) -> None:
        rng = random.Random(number)
        while time.perf_counter() - start < seconds:
            leaves = rng.random() < ABORTED_SHARE
            await ask(transport, rng.choice(requests), rng.randrange(1, 6) if leaves else None)
            counts[leaves] += 1

    async def watch() -> None:
        while True:
            sizes.append(resident() / 1e6)
            await asyncio.sleep(min(MEMORY_SAMPLE_SECONDS, seconds / 20))

    watcher = asyncio.create_task(watch())
    async with asyncio.TaskGroup() as group:
        for number in range(args.users):
            group.create_task(user(number))
    watcher.cancel()
    for _ in range(100):  # the engine frees aborted requests after its current step
        if not llm.model.open_sequences:
            break
        await asyncio.sleep(0.1)
    return (
        f"In a soak test of {(time.perf_counter() - start) / 60:.1f} minutes, the server completed"
        f" {counts[0]} answers, clients aborted {counts[1]} others, and"
        f" {llm.model.open_sequences or 'no'} answers remained open at the end. The server used"
        f" between {min(sizes):.0f} and {max(sizes):.0f} MB of memory. In the last"
        f" quarter of the test, memory use was {growth(sizes):.3f} times as high as in the second"
        " quarter."
    )


def resident() -> int:
    """Return this process's resident memory in bytes; if unknown, its peak."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="ascii").splitlines() if status.exists() else []
    sizes = (int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
    return next(sizes, 0) or peak_memory()


def growth(sizes: Sequence[float]) -> float:
    """Return the mean of the last quarter of the sizes, relative to that of the second quarter.

    The first quarter is left out, because caches fill up during it.
    """
    quarter = max(1, len(sizes) // 4)
    last, second = sizes[-quarter:], sizes[quarter : 2 * quarter] or sizes
    return sum(last) / len(last) / (sum(second) / len(second))


def _gaps(reply: Reply) -> list[float]:
    return [after - before for before, after in itertools.pairwise(reply.times)]


def _ms(values: Sequence[float], share: float) -> str:
    return f"{1000 * percentile(values, share):.0f} ms"


if __name__ == "__main__":
    main()
