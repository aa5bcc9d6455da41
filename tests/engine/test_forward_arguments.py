"""Test models whose `forward` has another name for the KV cache or takes `**kwargs`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from paceline import LLM, SamplingParams
from paceline.integrations.transformers import generate
from paceline.model.forward_arguments import GENERATE_CACHE
from tests.support.models import make
from tests.support.shared import reference

PROMPTS = [[5, 9, 33, 7] * 4, [11, 3, 4] * 4]


class OldName(LlamaForCausalLM):  # type: ignore[misc]
    """Model with the cache argument of remote code written before transformers 5.24."""

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        logits_to_keep: Any = 0,
        **kwargs: Any,
    ) -> Any:
        return super().forward(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            use_cache=use_cache,
            logits_to_keep=logits_to_keep,
            **{GENERATE_CACHE: past_key_values},
            **kwargs,
        )


class NewName(LlamaForCausalLM):  # type: ignore[misc]
    """Model with the cache argument of remote code written since."""

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        cache: Any = None,
        **kwargs: Any,
    ) -> Any:
        return super().forward(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            **{GENERATE_CACHE: cache},
            **kwargs,
        )


class Wrapper(LlamaForCausalLM):  # type: ignore[misc]
    """Model whose `forward` takes any arguments, as a wrapper does."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


@pytest.mark.parametrize("kind", [OldName, NewName, Wrapper])
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_cache_is_passed_under_the_forwards_name(
    kind: type[LlamaForCausalLM], batch_invariant: bool
) -> None:
    plain = make("llama")
    model = kind(plain.config).eval()
    model.load_state_dict(plain.state_dict())
    expected = [reference(plain, prompt, 24) for prompt in PROMPTS]
    for drafter in ("none", "auto"):
        outs = LLM(model, drafter, batch_invariant=batch_invariant).generate(
            PROMPTS, SamplingParams(24)
        )
        assert [out.token_ids for out in outs] == expected


def test_generate_passes_and_returns_the_cache() -> None:
    model, prompt = make("llama"), torch.tensor([PROMPTS[0]])
    expected = model.generate(prompt, max_new_tokens=12, do_sample=False)
    found = generate(
        model, prompt, max_new_tokens=12, do_sample=False, return_dict_in_generate=True
    )
    assert torch.equal(found.sequences, expected)
    assert found[GENERATE_CACHE].get_seq_length() == expected.shape[1] - 1
