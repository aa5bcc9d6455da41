"""Test SmolLM2 under a grammar: answers are valid and equal plain decoding."""

from __future__ import annotations

import pytest

from tests.support.real import NEEDS_REAL, Real
from tests.test_grammars import EXAMPLE, PROMPTS, check, params, same

pytestmark = NEEDS_REAL


@pytest.fixture(scope="module")
def texts(real: Real) -> list[list[int]]:
    return [real.tokenizer(text)["input_ids"] for text in (*PROMPTS, EXAMPLE * 4)]


@pytest.mark.parametrize(
    "spec",
    [
        "sssd:datastore=tiny,max_nodes=6",
        *(
            pytest.param(spec, marks=pytest.mark.slow)
            for spec in ("prompt_lookup", "token_recycling:max_nodes=6")
        ),
    ],
)
def test_answers_follow_the_grammar(real: Real, texts: list[list[int]], spec: str) -> None:
    """Check complete answers, greedy and sampled."""
    llm = real.engine(spec, texts, max_batch=4)
    messages = [
        {"role": "user", "content": f"Describe a table as JSON, such as {EXAMPLE}. Only JSON."}
    ]
    prompts = [llm.chat_prompt(messages), *texts[:2]]
    for temperature in (0.0, 0.8):
        one = params(llm, temperature=temperature, seed=1)
        outs = llm.generate(prompts, one)
        for out in outs:
            check(out.text)
        if temperature == 0 or spec == "prompt_lookup":
            same(outs, real.engine("none", texts, max_batch=4).generate(prompts, one))
        assert sum(out.stats.accepted_tokens for out in outs) > 0
