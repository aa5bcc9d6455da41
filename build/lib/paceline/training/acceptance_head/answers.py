"""Supply the answers that an acceptance head learns from.

The answers are read from a file written by `paceline record`, or the target generates them batch by
batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from paceline import demo
from paceline.core.sampling_params import SamplingParams
from paceline.errors import CapacityError, ConfigError
from paceline.llm import LLM
from paceline.model.identity import model_identity
from paceline.replay.recorder import RecordingPrompt, answer, encode_prompts
from paceline.report.prompts import load_prompts
from paceline.training.acceptance_head.settings import RecordConfig
from paceline.training.text_chunks import read_own_answers
from paceline.util.files import digest_of
from paceline.util.options import flat


@dataclass(frozen=True, slots=True)
class TargetAnswers:
    """Hold prompts, sorted by length to reduce padding, and their answers' source.

    Attributes:
        prompts: Token ids of each prompt.
        sampling: Sampling parameters for the target.
        origin: Entries in the recording's settings that identify these answers.
        batch: Function that returns the answers to a range of prompts.
        cut: Number of prompts that were too long and were truncated in the middle.
    """

    prompts: list[list[int]]
    sampling: SamplingParams
    origin: dict[str, str]
    batch: Callable[[range], list[list[int]]]
    cut: int = 0


def find_answers(
    config: RecordConfig, target: PreTrainedModel, draft: PreTrainedModel, tokenizer: Any
) -> TargetAnswers:
    """Return the answers in the configured file, or else generate them.

    Args:
        config: Settings for the recording.
        target: Target model.
        draft: Draft model.
        tokenizer: Tokenizer, as in `LLM`.
    Raises:
        ConfigError: The prompts or the file cannot be used.
        CapacityError: A model's context is too short for the prompts and answers.
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
    encoded = _encoded_prompts(config, llm, draft)
    prompts = [prompt.prompt_ids for prompt in encoded]

    def batch(numbers: range) -> list[list[int]]:
        completions = answer(
            llm, [prompts[number] for number in numbers], config.sampling, numbers.start
        )
        return [completion.token_ids for completion in completions]

    return TargetAnswers(prompts, config.sampling, {}, batch, sum(prompt.cut for prompt in encoded))


def _encoded_prompts(
    config: RecordConfig, llm: LLM, draft: PreTrainedModel
) -> list[RecordingPrompt]:
    """Return the prompts sorted by length, truncating over-long ones in the middle."""
    selection, skip_every = config.selection, config.skip_every
    selected = []
    for path in selection.prompts or (demo.PROMPTS,):
        skipped = (
            {prompt.id for prompt in load_prompts([path], every=skip_every)} if skip_every else ()
        )
        loaded = load_prompts([path], selection.limit, selection.every)
        selected += [prompt for prompt in loaded if prompt.id not in skipped]
    if not selected:
        raise _nothing_left(config)
    context = min(llm.max_length, _context(draft) or llm.max_length)
    encoded = encode_prompts(selected, llm, config.sampling.max_new_tokens, context)
    return sorted(encoded, key=lambda prompt: len(prompt.prompt_ids))


def _recorded(
    config: RecordConfig, path: Path, target: PreTrainedModel, draft: PreTrainedModel
) -> TargetAnswers:
    """Return the answers in a file, which the target must have generated."""
    settings, answers = read_own_answers(path, model_identity(target)[0])
    selection, skip_every = config.selection, config.skip_every
    if selection.prompts:
        raise ConfigError(
            "head record: got both answers and prompts; expected one of them, as answers hold"
            " prompts. Leave one out."
        )
    numbers = range(0, len(answers), selection.every)[: selection.limit or None]
    answers = [answers[number] for number in numbers if not skip_every or number % skip_every]
    if not answers:
        raise _nothing_left(config)
    answers.sort(key=lambda recorded: len(recorded.prompt_ids))
    longest = max(len(recorded.prompt_ids) + len(recorded.output_ids) for recorded in answers)
    context = _context(draft)
    if context is not None and longest > context:
        raise CapacityError(
            f"answers {str(path)!r}: got a prompt and answer of {longest} tokens; expected at most"
            f" the {context} of the draft's context. Record shorter ones."
        )
    outputs = [recorded.output_ids for recorded in answers]
    return TargetAnswers(
        [recorded.prompt_ids for recorded in answers],
        _sampling_of(config, path, settings),
        {"answers": digest_of({"outputs": outputs})},
        lambda numbers: [outputs[number] for number in numbers],
    )


def _sampling_of(config: RecordConfig, path: Path, settings: dict[str, Any]) -> SamplingParams:
    """Return a file's sampling settings; raise if the options differ from them."""
    sampling = SamplingParams(**settings["sampling"])
    for name, value in flat(config.sampling).items():
        if value not in (getattr(sampling, name), getattr(SamplingParams(), name)):
            raise ConfigError(
                f"head record: {name}: got {value!r}; expected {getattr(sampling, name)!r}, with"
                f" which {str(path)!r} was recorded. Leave it out."
            )
    replace(config, sampling=sampling)  # raises for sampling that a head cannot learn from
    return sampling


def _context(model: PreTrainedModel) -> int | None:
    config = model.config.get_text_config(decoder=True)
    length = getattr(config, "max_position_embeddings", None)
    return None if length is None else int(length)


def _nothing_left(config: RecordConfig) -> ConfigError:
    return ConfigError(
        f"head record: got skip_every={config.skip_every}, which leaves no prompt; expected some"
        " to be left. Leave out fewer."
    )
