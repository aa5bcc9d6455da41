"""Record a model's answers once, and replay them with every drafter.

The answers are greedy, sampled at several temperatures, or encoded in another vocabulary. Drafts
never change an answer, and with the same seed, every drafter gives the same sample. A replay
therefore counts the same steps as decoding. The only difference is that a replay drafts no tokens
after the end of the recorded answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from paceline import datastore
from paceline.core.sampling_params import SamplingParams
from paceline.datastore.mistral import MISTRAL, MistralTokenizer
from paceline.errors import ConfigError
from paceline.llm import LLM
from paceline.replay.run import Trace
from papers.config import TimeLimit
from papers.sssd.paper_settings import (
    ANSWER_BATCH,
    SAMPLE_ROUNDS,
    SAMPLING_SHARE,
    STORE_TOKENS,
    TEMPERATURES,
    TOP_K,
    TOP_P,
)
from papers.sssd.replays import ReplayOptions, documents, replay_all
from papers.sssd.result import NOTHING, Study, VocabularyStudy

GREEDY = "T = 0"

Asked = tuple[str, list[int]]  # name of the set, and token ids of the prompt


def answer(
    llm: LLM,
    prompts: Sequence[Asked],
    params: SamplingParams,
    left: float = 0.0,
    progress: bool = True,
) -> dict[str, list[Trace]]:
    """Answer the prompts with plain decoding, a few at a time; return answers by set.

    Args:
        llm: Engine that generates the answers.
        prompts: Name of the set and token ids of each prompt.
        params: Sampling parameters.
        left: Time limit in seconds; 0 sets no limit. The first prompts are always answered.
        progress: Whether to show a progress bar.
    """
    answers = dict[str, list[Trace]]()
    for start in TimeLimit(left).within(range(0, len(prompts), ANSWER_BATCH), "answers", progress):
        group = prompts[start : start + ANSWER_BATCH]
        outputs = llm.generate([ids for _, ids in group], params)
        for (name, ids), output in zip(group, outputs, strict=True):
            answers.setdefault(name, []).append((ids, output.token_ids))
    return answers


def temperature_name(temperature: float) -> str:
    """Return the name of the set of answers at a temperature."""
    return f"T = {temperature:g}"


def sampled(
    llm: LLM, greedy: Sequence[Trace], params: SamplingParams, options: ReplayOptions
) -> Study:
    """Sample answers at several temperatures, and replay them.

    Args:
        llm: Engine that generates the answers.
        greedy: Greedy answers to the same prompts.
        params: Sampling parameters of the greedy answers, with the first seed.
        options: Options of the replays, including the time limit. Every prompt is sampled at least
            once.
    Raises:
        KeyboardInterrupt: Ctrl-C was pressed before every prompt had been sampled once.
    """
    limit, complete = TimeLimit(options.left), True
    traces: dict[str, list[Trace]] = {GREEDY: list(greedy)}
    prompts = [(GREEDY, list(prompt)) for prompt, _ in greedy]
    try:
        for round_number in limit.within(range(SAMPLE_ROUNDS), share=SAMPLING_SHARE):
            by_name: dict[str, list[Trace]] = {}
            for temperature in TEMPERATURES:
                drawn = replace(
                    params,
                    temperature=temperature,
                    top_k=TOP_K,
                    top_p=TOP_P,
                    seed=params.seed + round_number,
                )
                answers = answer(llm, prompts, drawn, progress=options.progress)
                by_name[temperature_name(temperature)] = answers[GREEDY]
            for name, samples in by_name.items():
                traces[name] = traces.get(name, []) + samples
    except KeyboardInterrupt:
        if len(traces) == 1:
            raise
        complete = False
    study = replay_all(traces, replace(options, left=limit.left()))
    return replace(study, complete=complete and study.complete)


def in_vocabularies(
    traces: Sequence[Trace], tokenizer: Any, own: str, vocab_size: int, options: ReplayOptions
) -> VocabularyStudy:
    """Replay answers in the model's vocabulary and in that of mistral-common.

    The second vocabulary is skipped if mistral-common is not installed.

    Args:
        traces: Answers to replay.
        tokenizer: Tokenizer of the model.
        own: Name of the model's vocabulary.
        vocab_size: Size of the model's vocabulary.
        options: Options of the replays, including the time limit.
    Raises:
        KeyboardInterrupt: Ctrl-C was pressed before the last vocabulary.
    """
    store = options.store
    prompts = [tokenizer.decode(list(prompt)) for prompt, _ in traces]
    outputs = [tokenizer.decode(list(output), skip_special_tokens=True) for _, output in traces]
    texts = documents(store, STORE_TOKENS) if store is not None else []
    by_name = {own: (list(traces), texts, vocab_size)}
    other = _other_tokenizer()
    if other is not None:
        translated: list[Trace] = [
            (_ids(other, prompt) or [0], _ids(other, output))
            for prompt, output in zip(prompts, outputs, strict=True)
        ]
        stored = [_ids(other, tokenizer.decode(text)) for text in texts]
        by_name[MISTRAL] = (translated, stored, 1 + max(other.get_vocab().values()))
    study = NOTHING
    with TemporaryDirectory() as folder:
        for number, (name, (answers, stored, size)) in enumerate(by_name.items()):
            folder_path = str(Path(folder) / str(number)) if stored else None
            if not study.complete:
                raise KeyboardInterrupt
            if folder_path is not None:
                datastore.build(folder_path, stored, size)
            left = options.left / len(by_name)
            single = replay_all({name: answers}, replace(options, store=folder_path, left=left))
            study = Study(
                single.complete,
                study.answers | single.answers,
                study.tokens | single.tokens,
                study.rows + single.rows,
            )
    return VocabularyStudy(
        study,
        {name: size for name, (_, _, size) in by_name.items()},
        sum(map(len, outputs)),
        {name: sum(map(len, stored)) for name, (_, stored, _) in by_name.items()},
    )


def _other_tokenizer() -> MistralTokenizer | None:
    try:
        return MistralTokenizer()
    except ConfigError:  # not installed
        return None


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
