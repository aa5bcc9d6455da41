"""The answers that a head learns from: recorded before by `paceline record`, or given now, a
batch at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from paceline import demo
from paceline.core.request import SamplingParams
from paceline.errors import CapacityError, ConfigError
from paceline.llm import LLM
from paceline.model.identity import model_identity
from paceline.recorded_answers.reading import read_answers, read_settings
from paceline.replay.recorder import RecordingPrompt, answer, encode_prompts
from paceline.report.prompts import load_prompts
from paceline.training.acceptance_head.settings import RecordConfig
from paceline.util.files import digest_of
from paceline.util.options import flat


@dataclass(frozen=True, slots=True)
class TargetAnswers:
    """Prompts, sorted by length so that batches have little padding, and the target's answers to
    them.

    Attributes:
        prompts: token ids of each.
        sampling: how the target answers, or answered.
        origin: for the settings of a recording: what tells these answers from others.
        batch: returns the answers to some of the prompts, by their numbers.
        cut: how many of the prompts were too long, and have lost their middle.
    """

    prompts: list[list[int]]
    sampling: SamplingParams
    origin: dict[str, str]
    batch: Callable[[range], list[list[int]]]
    cut: int = 0


def find_answers(
    config: RecordConfig, target: PreTrainedModel, draft: PreTrainedModel, tokenizer: Any
) -> TargetAnswers:
    """Return the answers in the file that was named; else answer the prompts.

    Raises:
        ConfigError: prompts or a file that cannot be used. CapacityError: a context too short for
            prompts and answers.
    """
    if config.answers is not None:
        return _recorded(config, config.answers, target, draft)
    llm = LLM(
        target,
        "draft_model",
        draft,
        tokenizer or str(demo.target_of(config.models.model)),
        max_batch=config.batch,
        batch_invariant=config.models.invariance,
    )
    questions = _questions(config, llm, draft)
    prompts = [question.prompt_ids for question in questions]

    def batch(numbers: range) -> list[list[int]]:
        completions = answer(
            llm, [prompts[number] for number in numbers], config.sampling, numbers.start
        )
        return [completion.token_ids for completion in completions]

    return TargetAnswers(
        prompts, config.sampling, {}, batch, sum(question.cut for question in questions)
    )


def _questions(config: RecordConfig, llm: LLM, draft: PreTrainedModel) -> list[RecordingPrompt]:
    """Return the prompts, sorted by length; one too long for either context keeps its beginning
    and its end.
    """
    asked = config.selection
    chosen = []
    for path in asked.prompts or (demo.PROMPTS,):
        left_out = (
            {prompt.id for prompt in load_prompts([path], every=config.skip_every)}
            if config.skip_every
            else set()
        )
        chosen += [
            prompt
            for prompt in load_prompts([path], asked.limit, asked.every)
            if prompt.id not in left_out
        ]
    if not chosen:
        raise _nothing_left(config)
    context = min(llm.max_length, _context(draft) or llm.max_length)
    questions = encode_prompts(chosen, llm, config.sampling.max_new_tokens, context)
    return sorted(questions, key=lambda question: len(question.prompt_ids))


def _recorded(
    config: RecordConfig, path: Path, target: PreTrainedModel, draft: PreTrainedModel
) -> TargetAnswers:
    """Return the answers of a file, if it is one of the target."""
    settings = read_settings(path)
    found = list(read_answers(path))
    assert settings is not None  # read_answers refuses other files
    fingerprint = model_identity(target)[0]
    if settings["model_fingerprint"] != fingerprint:
        raise ConfigError(
            f"answers {str(path)!r}: got those of {settings['model']!r}"
            f" ({settings['model_fingerprint']}); expected those of the target"
            f" {config.models.model!r} ({fingerprint}). Name that target, or record its own."
        )
    asked = config.selection
    if asked.prompts:
        raise ConfigError(
            "head record: got both answers and prompts; expected one of them, as answers hold"
            " prompts. Leave one out."
        )
    places = range(0, len(found), asked.every)[: asked.limit or None]
    found = [found[place] for place in places if not config.skip_every or place % config.skip_every]
    if not found:
        raise _nothing_left(config)
    found.sort(key=lambda one: len(one.prompt_ids))
    longest, context = (
        max(len(one.prompt_ids) + len(one.output_ids) for one in found),
        _context(draft),
    )
    if context is not None and longest > context:
        raise CapacityError(
            f"answers {str(path)!r}: got a prompt and answer of {longest} tokens; expected at most"
            f" the {context} of the draft's context. Record shorter ones."
        )
    outputs = [one.output_ids for one in found]
    origin = {"answers": digest_of({"outputs": outputs})}
    prompts, sampling = [one.prompt_ids for one in found], _sampling_of(config, path, settings)
    return TargetAnswers(
        prompts, sampling, origin, lambda numbers: [outputs[number] for number in numbers]
    )


def _sampling_of(config: RecordConfig, path: Path, settings: dict[str, Any]) -> SamplingParams:
    """Return the sampling settings of a file; others than these may not be asked for."""
    found = SamplingParams(**settings["sampling"])
    for name, value in flat(config.sampling).items():
        if value not in (getattr(found, name), getattr(SamplingParams(), name)):
            raise ConfigError(
                f"head record: {name}: got {value!r}; expected {getattr(found, name)!r}, with which"
                f" {str(path)!r} was recorded. Leave it out."
            )
    replace(config, sampling=found)  # refuses what a head cannot learn from
    return found


def _context(model: PreTrainedModel) -> int | None:
    found = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    return None if found is None else int(found)


def _nothing_left(config: RecordConfig) -> ConfigError:
    return ConfigError(
        f"head record: got skip_every={config.skip_every}, which leaves no prompt; expected some"
        " to be left. Leave out fewer."
    )
