"""Test SmolLM2 in float32 with every drafter that needs no model against `generate`."""

from __future__ import annotations

import itertools

import pytest

from paceline import SamplingParams
from tests.support.real import MODEL_FREE, NEEDS_REAL, Real

pytestmark = NEEDS_REAL

BATCH = 4
LONGEST = 12
# each spans several tokens of some answer
STOP = ("day, Fri", "h.\nThe s", "e\nid;", "b\n\ndef", "row, row, row, r")
STREAMED = ("list-1", "prose-2")
# Streamed by default: no drafts, chains and trees.
SHOWN = ("none", "prompt_lookup", "auto")
# their correct drafts of the first prompt continue past the stop string
INSIDE = ("prompt_lookup", "sssd", "lookahead", "rest", "pia")


@pytest.fixture(scope="module")
def answers(real: Real) -> dict[str, list[int]]:
    """Return the answers of transformers, cut after the token that completes a stop string."""
    found = real.references([*real.prompts.values()], LONGEST)
    return {
        name: cut_at_stop(real, answer) for name, answer in zip(real.prompts, found, strict=True)
    }


@pytest.fixture(scope="module")
def texts(real: Real, answers: dict[str, list[int]]) -> list[list[int]]:
    return [real.prompts[name] + answers[name] for name in answers]


def cut_at_stop(real: Real, answer: list[int]) -> list[int]:
    heads = (answer[:end] for end in range(1, len(answer)))
    return next(
        (head for head in heads if any(stop in real.tokenizer.decode(head) for stop in STOP)),
        answer,
    )


def decoded(real: Real, answer: list[int]) -> tuple[str, str]:
    """Return the text before a stop string, and the finish reason."""
    text = real.tokenizer.decode(answer, skip_special_tokens=True)
    cut = min((text.find(stop) for stop in STOP if stop in text), default=None)
    return text[:cut], "length" if cut is None and answer[
        -1
    ] != real.model.config.eos_token_id else "stop"


def test_answers_have_all_finish_reasons(real: Real, answers: dict[str, list[int]]) -> None:
    texts = [real.tokenizer.decode(answer) for answer in answers.values()]
    assert all(any(stop in text for text in texts) for stop in STOP)
    assert not any(
        stop in real.tokenizer.decode([token])
        for answer in answers.values()
        for token in answer
        for stop in STOP
    )
    assert sum(answer[-1] == real.model.config.eos_token_id for answer in answers.values()) == 1
    assert sum(len(answer) == LONGEST for answer in answers.values()) >= 12


@pytest.mark.parametrize(("turn", "spec"), list(enumerate(MODEL_FREE)))
def test_answers_equal_transformers(
    turn: int, spec: str, real: Real, answers: dict[str, list[int]], texts: list[list[int]]
) -> None:
    """Check more prompts than slots, with a quarter of the prompts for each drafter."""
    names = list(answers)[turn % 4 :: 4]
    assert len(names) > BATCH
    limits = [LONGEST - place % 7 for place in range(len(names))]
    expected = [answers[name][:limit] for name, limit in zip(names, limits, strict=True)]
    llm = real.engine(spec, texts, max_batch=BATCH)
    outs = llm.generate(
        [real.prompts[name] for name in names],
        [SamplingParams(limit, stop=STOP) for limit in limits],
    )
    assert [out.token_ids for out in outs] == expected
    assert [(out.text, out.finish_reason) for out in outs] == [
        decoded(real, answer) for answer in expected
    ]
    assert llm.model.open_sequences == 0
    helped = sum(out.stats.accepted_tokens > 0 for out in outs)
    # So short answers seldom repeat their own text.
    assert (
        helped == 0
        if spec == "none"
        else helped >= len(outs) // (8 if spec.startswith("token_recycling") else 2)
    )
    rejected = sum(out.stats.drafted_tokens - out.stats.accepted_tokens for out in outs)
    assert (rejected > 0) == (spec != "none")


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(spec, marks=() if spec.startswith(SHOWN) else pytest.mark.slow)
        for spec in MODEL_FREE
    ],
)
def test_streams_show_the_same_text(
    spec: str, real: Real, answers: dict[str, list[int]], texts: list[list[int]]
) -> None:
    """Check two concurrent streams that both end at a stop string."""
    llm = real.engine(spec, texts)
    streams = [
        llm.stream(real.prompts[name], SamplingParams(LONGEST, stop=STOP)) for name in STREAMED
    ]
    steps = list(itertools.zip_longest(*streams))
    shown = [
        [chunk for chunk in column if chunk is not None] for column in zip(*steps, strict=True)
    ]
    for name, chunks in zip(STREAMED, shown, strict=True):
        text, reason = decoded(real, answers[name])
        assert [token for chunk in chunks for token in chunk.token_ids] == answers[name]
        assert "".join(chunk.text for chunk in chunks) == text
        assert all("".join(piece for piece, _ in chunk.pieces) == chunk.text for chunk in chunks)
        last = chunks[-1].completion
        assert last is not None
        assert (last.text, last.token_ids, last.finish_reason, reason) == (
            text,
            answers[name],
            "stop",
            "stop",
        )
    if spec.partition(":")[0] in INSIDE and "datastore" not in spec:
        assert shown[0][-1].accepted[-1]  # every other step ends with the target's own token
