"""Run every load with every drafter on one engine, and compare the answers."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from paceline import demo
from paceline.bench.environment import load_average, look_around, peak_memory
from paceline.bench.models import describe_weights, torch_threads
from paceline.bench.serving.clients import Reply, ask, closed_loop, open_loop, poisson, waited
from paceline.bench.serving.measure_settings import ARRIVAL_SEED, MIN_PROMPT_TOKENS, WARMUP_TOKENS
from paceline.bench.serving.prompts import prompts_of
from paceline.bench.serving.result import Cell, LoadLevel, ServingResult, TimedAnswer
from paceline.bench.serving.settings import ServingConfig
from paceline.bench.serving.transports import ClientRequest, Transport, transport_to
from paceline.core.metrics import Timing
from paceline.drafters import PLAIN, Maker, entry
from paceline.errors import CapacityError
from paceline.llm import LLM
from paceline.report.prompts import Prompt, load_prompts
from paceline.util.config import parse_spec


def run_serving(
    config: ServingConfig, *, prompts: Sequence[Prompt] | None = None, progress: bool = True
) -> ServingResult:
    """Run a load benchmark; after Ctrl-C, return the results of the completed loads.

    Args:
        config: Loads, drafters, prompts and model.
        prompts: Prompts to use instead of those named in `config`.
        progress: Whether to show progress on standard error, updated only between loads.
    Raises:
        ConfigError, CapacityError, UnsupportedModelError: Part of the benchmark cannot be run.
            Nothing has been timed.
        PacelineError: The server rejected a request.
    """
    with torch_threads(config.models.threads):
        return _Bench(config, prompts, progress).run()


class _Bench:
    def __init__(
        self, config: ServingConfig, prompts: Sequence[Prompt] | None, progress: bool
    ) -> None:
        self._config, self._progress = config, progress
        selection = config.selection
        self._prompts = prompts or load_prompts(selection.prompts, selection.limit, selection.every)
        self._users = max(config.load.user_counts)
        self._llm, self._make = engine_of(config)
        self._room = self._llm.max_length - config.max_new_tokens
        if self._room < MIN_PROMPT_TOKENS:
            raise CapacityError(
                f"bench: got \0max_new_tokens\0 {config.max_new_tokens} and a context of"
                f" {self._llm.max_length} tokens; expected room for prompts of {MIN_PROMPT_TOKENS}."
                " Reduce \0max_new_tokens\0."
            )
        self._encoded_prompts = {
            name: prompts_of(name, config.load, self._prompts, self._llm.tokenizer, self._room)
            for name in config.load.context_names
        }
        self._cells: list[Cell] = []
        # First answer of plain decoding by context and prompt.
        self._plain_replies: dict[tuple[str, str], Reply] = {}

    def run(self) -> ServingResult:
        """Run all loads, and return the results."""
        config, llm = self._config, self._llm
        gc.collect()
        environment = look_around(llm.model.device)
        with transport_to(llm, config) as transport:
            complete = self._all(transport)
        environment = dataclasses.replace(
            environment, load_end=load_average(), peak_memory=peak_memory()
        )
        return ServingResult(
            config,
            environment,
            complete,
            config.models.model,
            str(llm.model.model.dtype).removeprefix("torch."),
            llm.invariance.on,
            tuple(self._cells),
            invariance=llm.invariance.reason,
            weights=describe_weights(llm.model.model, config.models.model),
        )

    def _all(self, transport: Transport) -> bool:
        """Run all loads; return False if interrupted."""
        load, steps = self._config.load, self._config.repeats * len(self._config.drafters)
        total = steps * len(self._encoded_prompts) * (len(load.user_counts) + len(load.shares))
        with Progress(
            console=Console(stderr=True),
            auto_refresh=False,
            transient=True,
            disable=not self._progress,
        ) as bar:
            task = bar.add_task("warm-up", total=total)

            def show(text: str) -> None:
                bar.update(task, advance=1, description=escape(text), refresh=True)

            try:
                self._warm_up(transport)
                for context in self._encoded_prompts:
                    for users in load.user_counts:
                        self._round(
                            transport, LoadLevel(context, "closed", users), load.count(users), show
                        )
                    capacity = self._capacity(context)
                    for share in load.shares:
                        self._round(
                            transport,
                            LoadLevel(context, "poisson", share, share * capacity),
                            load.count(self._users),
                            show,
                        )
            except KeyboardInterrupt:
                return False
        return True

    def _warm_up(self, transport: Transport) -> None:
        name, ids = next(iter(self._encoded_prompts.values()))[0]
        for drafter in self._config.drafters:
            self._llm.change_drafter(self._make(drafter))
            self._llm.finish_draft_head()
            waited(ask(transport, ClientRequest(name, ids, WARMUP_TOKENS, None)))
        self._llm.check_loaded_costs()

    def _round(
        self, transport: Transport, load: LoadLevel, count: int, show: Callable[[str], None]
    ) -> None:
        """Measure every drafter under one load, rotating their order in each repetition."""
        done: list[tuple[Cell, list[Reply]]] = []
        drafters = self._config.drafters
        for repeat in range(self._config.repeats):
            shift = (len(self._cells) // len(drafters) + repeat) % len(drafters)
            for drafter in (*drafters[shift:], *drafters[:shift]):
                show(f"{load.context}, {load.name}, {drafter}")
                done.append(self._cell(transport, load, drafter, repeat, count))
        for cell, replies in done:
            for reply in replies if cell.drafter == PLAIN else ():
                self._plain_replies.setdefault((load.context, reply.request.prompt), reply)
        self._cells += [
            dataclasses.replace(cell, answers=tuple(self._answer(load, reply) for reply in replies))
            for cell, replies in done
        ]

    def _cell(
        self, transport: Transport, load: LoadLevel, drafter: str, repeat: int, count: int
    ) -> tuple[Cell, list[Reply]]:
        prompts = self._encoded_prompts[load.context]
        requests = [
            ClientRequest(*prompts[index % len(prompts)], self._config.max_new_tokens, None)
            for index in range(count)
        ]
        if load.kind == "closed":
            work = closed_loop(transport, requests, int(load.level))
        else:
            work = open_loop(transport, requests, poisson(load.rate, count, ARRIVAL_SEED + repeat))
        self._llm.change_drafter(self._make(drafter))  # a new drafter has seen none of the answers
        gc.collect()
        before, cpu, start = self._llm.timing, time.process_time(), time.perf_counter()
        replies = waited(work)
        seconds, cpu = max(reply.times[-1] for reply in replies) - start, time.process_time() - cpu
        timing: Timing | None = (
            self._llm.timing - before if self._llm.model.device.type == "cpu" else None
        )
        return Cell(load, drafter, repeat, seconds, cpu, timing, ()), replies

    def _answer(self, load: LoadLevel, reply: Reply) -> TimedAnswer:
        request, times = reply.request, reply.times
        plain_reply = self._plain_replies[load.context, request.prompt]
        gaps = tuple(round(after - before, 6) for before, after in itertools.pairwise(times))
        return TimedAnswer(
            request.prompt,
            len(request.token_ids),
            reply.tokens,
            times[0] - reply.began,
            times[-1] - reply.began,
            gaps,
            None if plain_reply is reply else plain_reply.content == reply.content,
        )

    def _capacity(self, context: str) -> float:
        """Return the highest number of requests per second with plain decoding.

        The measurement simulates users who wait for each answer before sending the next request.
        """
        plain = [
            cell for cell in self._cells if cell.drafter == PLAIN and cell.load.context == context
        ]
        return max(len(cell.answers) / cell.seconds for cell in plain if cell.load.kind == "closed")


def engine_of(config: ServingConfig) -> tuple[LLM, Maker]:
    """Return the engine for all loads, and a function that builds its drafters.

    Args:
        config: Models, drafters and loads.
    """
    options = config.models
    draft_name = demo.draft_name(options.model, options.draft_model)
    entries = [entry(parse_spec(spec)[0]) for spec in config.drafters]
    named = options.draft_model is not None
    takes = any(
        drafter.needs_draft_model or (named and drafter.takes_draft_model) for drafter in entries
    )
    draft = demo.draft_of(draft_name) if takes and draft_name is not None else None
    llm = LLM(
        demo.target_of(options.model),
        PLAIN,
        draft,
        dtype=options.dtype,
        device=options.device,
        max_batch=config.load.batch,
        max_nodes=config.max_nodes,
        batch_invariant=options.invariance,
        unpack=options.unpack,
        weights=options.weights,
        engine=options.engine,
    )
    return llm, Maker(draft, options.dtype, str(llm.model.device))
