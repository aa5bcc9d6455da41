"""A model's own answers, recorded once and replayed: greedy, at several temperatures, and in
another vocabulary.

Guesses never change an answer, and the same seed gives the same sample behind any drafter; so what
is counted in a replay is what decoding would have counted. One difference: a replay knows where an
answer ends, and drafts nothing beyond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from paceline import datastore
from paceline.bench.papers.config import TimeLimit
from paceline.bench.papers.sssd.replays import documents, replay_all
from paceline.bench.papers.sssd.result import NOTHING, Study, VocabularyStudy
from paceline.core.request import SamplingParams
from paceline.datastore.mistral import MISTRAL, MistralTokenizer
from paceline.errors import ConfigError
from paceline.llm import LLM
from paceline.replay.run import Trace

TEMPERATURES = (0.5, 1.0, 2.0)
TOP_K, TOP_P = 50, 0.7  # of section 4.2
GREEDY = "T = 0"
_ROUNDS = 4  # samples of each answer, as time allows
_DRAWN = 0.7  # of the time, until the samples are replayed
_TOGETHER = 8
_STORE_TOKENS = 1_000_000  # of the store that is written in both vocabularies

Asked = tuple[str, list[int]]  # the set of a prompt, and its ids


def answer(
    llm: LLM,
    asked: Sequence[Asked],
    params: SamplingParams,
    left: float = 0.0,
    progress: bool = True,
) -> dict[str, list[Trace]]:
    """Return plain answers by set, some prompts at a time.

    Args:
        left: seconds that may be used; 0 = no limit. The first prompts are always answered.
    """
    found = dict[str, list[Trace]]()
    for at in TimeLimit(left).within(range(0, len(asked), _TOGETHER), "answers", progress):
        some = asked[at : at + _TOGETHER]
        outputs = llm.generate([ids for _, ids in some], params)
        for (name, ids), output in zip(some, outputs, strict=True):
            found.setdefault(name, []).append((ids, output.token_ids))
    return found


def temperature_name(temperature: float) -> str:
    """Return the name of the set of answers at a temperature."""
    return f"T = {temperature:g}"


def sampled(
    llm: LLM,
    greedy: Sequence[Trace],
    params: SamplingParams,
    store: str | None,
    methods: Sequence[str],
    sizes: Sequence[int],
    left: float,
    progress: bool,
) -> Study:
    """Replay the same prompts at several temperatures, sampled with other seeds as long as time
    allows.

    Args:
        greedy: their greedy answers. params: of these; the seed is the first one.
        methods: names of those in `METHODS` that are replayed.
        left: seconds that may be used; 0 = no limit. Every prompt is sampled once.
    Raises:
        KeyboardInterrupt: before every prompt was sampled once.
    """
    limit, complete = TimeLimit(left), True
    traces: dict[str, list[Trace]] = {GREEDY: list(greedy)}
    asked = [(GREEDY, list(prompt)) for prompt, _ in greedy]
    try:
        for turn in limit.within(range(_ROUNDS), share=_DRAWN):
            found: dict[str, list[Trace]] = {}
            for temperature in TEMPERATURES:
                drawn = replace(
                    params,
                    temperature=temperature,
                    top_k=TOP_K,
                    top_p=TOP_P,
                    seed=params.seed + turn,
                )
                found[temperature_name(temperature)] = answer(llm, asked, drawn, progress=progress)[
                    GREEDY
                ]
            for name, some in found.items():
                traces[name] = traces.get(name, []) + some
    except KeyboardInterrupt:
        if len(traces) == 1:
            raise
        complete = False
    study = replay_all(traces, store, methods, sizes=sizes, left=limit.left(), progress=progress)
    return replace(study, complete=complete and study.complete)


def in_vocabularies(
    traces: Sequence[Trace],
    tokenizer: Any,
    own: str,
    vocab_size: int,
    store: str | None,
    methods: Sequence[str],
    left: float,
    progress: bool,
) -> VocabularyStudy:
    """Replay answers as they are and, if its package is installed, in the 32k vocabulary of
    mistral-common.

    Args:
        own: what to call the model's vocabulary, of `vocab_size` tokens.
        methods, left: as in `sampled`.
    Raises:
        KeyboardInterrupt: before the last vocabulary.
    """
    prompts = [tokenizer.decode(list(prompt)) for prompt, _ in traces]
    outputs = [tokenizer.decode(list(output), skip_special_tokens=True) for _, output in traces]
    kept = documents(store, _STORE_TOKENS) if store is not None else []
    found = {own: (list(traces), kept, vocab_size)}
    other = _other_tokenizer()
    if other is not None:
        ours: list[Trace] = [
            (_ids(other, prompt) or [0], _ids(other, output))
            for prompt, output in zip(prompts, outputs, strict=True)
        ]
        stored = [_ids(other, tokenizer.decode(text)) for text in kept]
        found[MISTRAL] = (ours, stored, 1 + max(other.get_vocab().values()))
    study = NOTHING
    with TemporaryDirectory() as folder:
        for number, (name, (some, stored, size)) in enumerate(found.items()):
            place = str(Path(folder) / str(number)) if stored else None
            if not study.complete:
                raise KeyboardInterrupt
            if place is not None:
                datastore.build(place, stored, size)
            one = replay_all(
                {name: some}, place, methods, left=left / len(found), progress=progress
            )
            study = Study(
                one.complete,
                study.answers | one.answers,
                study.tokens | one.tokens,
                study.rows + one.rows,
            )
    return VocabularyStudy(
        study,
        {name: size for name, (_, _, size) in found.items()},
        sum(map(len, outputs)),
        {name: sum(map(len, stored)) for name, (_, stored, _) in found.items()},
    )


def _other_tokenizer() -> MistralTokenizer | None:
    try:
        return MistralTokenizer()
    except ConfigError:  # not installed
        return None


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
