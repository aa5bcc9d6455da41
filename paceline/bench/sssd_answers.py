"""A model's own answers, recorded once and replayed: greedy, at several temperatures, and in another vocabulary.

Guesses never change an answer, and the same seed gives the same sample behind any drafter; so what is counted in a replay is what
decoding would have counted. One difference: a replay knows where an answer ends, and drafts nothing beyond.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.progress import track

from paceline import datastore
from paceline.bench.sssd_replays import METHODS, Method, Study, replay_all
from paceline.bench.sssd_stores import documents
from paceline.errors import ConfigError
from paceline.llm import LLM
from paceline.replay import Trace
from paceline.sequence import SamplingParams
from paceline.text_mistral import MISTRAL, MistralTokenizer

TEMPERATURES = (0.5, 1.0, 2.0)
TOP_K, TOP_P = 50, 0.7  # of section 4.2
GREEDY = "T = 0"
_ROUNDS = 4  # samples of each answer, as time allows
_DRAWN = 0.7  # of the time, until the samples are replayed
_TOGETHER = 8
_STORE_TOKENS = 1_000_000  # of the store that is told in both vocabularies

Asked = tuple[str, list[int]]  # the set of a prompt, and its ids


def answer(
    llm: LLM, asked: Seq[Asked], params: SamplingParams, left: float = 0.0, progress: bool = True
) -> dict[str, list[Trace]]:
    """Plain answers by set, some prompts at a time.

    Args:
        left: seconds that may be used; 0 = no limit. The first prompts are always answered.
    """
    start, found = time.perf_counter(), dict[str, list[Trace]]()
    places = range(0, len(asked), _TOGETHER)
    for at in track(places, "answers", console=Console(stderr=True), transient=True, disable=not progress):
        some = asked[at : at + _TOGETHER]
        outputs = llm.generate([ids for _, ids in some], params)
        for (name, ids), output in zip(some, outputs, strict=True):
            found.setdefault(name, []).append((ids, output.token_ids))
        if 0 < left < time.perf_counter() - start:
            break
    return found


def temperature_name(temperature: float) -> str:
    """The set of answers at a temperature."""
    return f"T = {temperature:g}"


def sampled(
    llm: LLM, greedy: Seq[Trace], params: SamplingParams, store: str | None, methods: Seq[str], sizes: Seq[int], left: float,
    progress: bool,
) -> Study:  # fmt: skip
    """Section 4.2: the same prompts at several temperatures, sampled with other seeds as long as time allows.

    Args:
        greedy: their greedy answers. params: of these; the seed is the first one.
        methods: names of those in `METHODS` that are replayed.
        left: seconds that may be used; 0 = no limit. Every prompt is sampled once.
    Raises:
        KeyboardInterrupt: before every prompt was sampled once.
    """
    start, complete = time.perf_counter(), True
    traces: dict[str, list[Trace]] = {GREEDY: list(greedy)}
    asked = [(GREEDY, list(prompt)) for prompt, _ in greedy]
    try:
        for turn in range(_ROUNDS):
            found: dict[str, list[Trace]] = {}
            for temperature in TEMPERATURES:
                drawn = replace(params, temperature=temperature, top_k=TOP_K, top_p=TOP_P, seed=params.seed + turn)
                found[temperature_name(temperature)] = answer(llm, asked, drawn, progress=progress)[GREEDY]
            for name, some in found.items():
                traces[name] = traces.get(name, []) + some
            if 0 < left * _DRAWN < time.perf_counter() - start:
                break
    except KeyboardInterrupt:
        if len(traces) == 1:
            raise
        complete = False
    rest = max(1e-3, left - (time.perf_counter() - start)) if left else 0.0
    study = replay_all(traces, _named(methods), store, sizes=sizes, left=rest, progress=progress)
    return replace(study, complete=complete and study.complete)


@dataclass(frozen=True, slots=True)
class VocabularyStudy:
    """Figure 5: the same answers and the same datastore told in several vocabularies.

    Attributes:
        sizes: tokens of each vocabulary, by the name of its set in `study`. characters: of the answers.
        store_tokens: of the store in each vocabulary; 0 = there is none.
    """

    study: Study
    sizes: dict[str, int]
    characters: int
    store_tokens: dict[str, int]

    @staticmethod
    def read(values: dict[str, Any]) -> VocabularyStudy:
        """From its JSON form."""
        return VocabularyStudy(**{**values, "study": Study.read(values["study"])})

    @property
    def complete(self) -> bool:
        """Whether it was not interrupted."""
        return self.study.complete

    def characters_per_token(self, name: str) -> float:
        """Of the answers, in one of the vocabularies."""
        return self.characters / max(1, self.study.tokens[name])

    def characters_per_step(self, method: str, size: int, name: str) -> float | None:
        """Characters said per step by a method, in one of the vocabularies."""
        rate = self.study.rate(method, size, name)
        return None if rate is None else rate * self.characters_per_token(name)


def retold(
    traces: Seq[Trace], tokenizer: Any, own: str, vocab_size: int, store: str | None, methods: Seq[str], left: float,
    progress: bool,
) -> VocabularyStudy:  # fmt: skip
    """Replay answers as they are and, if its package is installed, in the 32k vocabulary of mistral-common.

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
            (_ids(other, prompt) or [0], _ids(other, output)) for prompt, output in zip(prompts, outputs, strict=True)
        ]
        told = [_ids(other, tokenizer.decode(text)) for text in kept]
        found[MISTRAL] = (ours, told, 1 + max(other.get_vocab().values()))
    studies = []
    with TemporaryDirectory() as folder:
        for number, (name, (some, stored, size)) in enumerate(found.items()):
            place = str(Path(folder) / str(number)) if stored else None
            if place is not None:
                datastore.build(place, stored, size)
            share = left / len(found)
            studies.append(replay_all({name: some}, _named(methods), place, left=share, progress=progress))
            if not studies[-1].complete and name != list(found)[-1]:
                raise KeyboardInterrupt
    return VocabularyStudy(
        _joined(studies), {name: size for name, (_, _, size) in found.items()}, sum(map(len, outputs)),
        {name: sum(map(len, stored)) for name, (_, stored, _) in found.items()},
    )  # fmt: skip


def _other_tokenizer() -> MistralTokenizer | None:
    try:
        return MistralTokenizer()
    except ConfigError:  # not installed
        return None


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _named(methods: Iterable[str]) -> list[Method]:
    wanted = set(methods)
    return [method for method in METHODS if method.name in wanted]


def _joined(studies: Seq[Study]) -> Study:
    """Studies of different sets as one."""

    def all_of(what: str) -> Iterator[tuple[str, int]]:
        return (pair for study in studies for pair in getattr(study, what).items())

    rows = tuple(row for study in studies for row in study.rows)
    return Study(all(study.complete for study in studies), dict(all_of("answers")), dict(all_of("tokens")), rows)
