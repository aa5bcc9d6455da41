"""Test returned scores, logits and caches, and caches that are continued."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    DynamicCache,
)

from paceline.integrations.transformers import Strategy, generate
from paceline.model.forward_arguments import GENERATE_CACHE
from tests.integrations.common import (
    ALL_OUTPUTS,
    DRAFTERS,
    ENDS,
    SAMPLED,
    Recorder,
    cached_model,
    padded,
    with_and_without,
)


def test_scores_logits_and_cache_equal_generate(
    target: Any, strategies: dict[str, Strategy], three: Any
) -> None:
    for strategy in strategies.values():
        expected, found = with_and_without(
            target, strategy, three, eos_token_id=ENDS, **SAMPLED, **ALL_OUTPUTS
        )
        assert len({row.new_tokens for row in strategy.stats}) > 1
        assert type(found) is type(expected)
        assert torch.equal(found.sequences, expected.sequences)
        for name in ("scores", "logits"):
            assert len(found[name]) == len(expected[name])
            for ours, theirs in zip(found[name], expected[name], strict=True):
                torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-4)
        seen = torch.cat([three["attention_mask"], torch.ones_like(found.sequences)], dim=-1)[
            :, None, :, None
        ]
        for mine, other in zip(
            found[GENERATE_CACHE].layers, expected[GENERATE_CACHE].layers, strict=True
        ):
            mask = seen[:, :, : other.keys.shape[2]]
            assert not mine.keys.is_inference()
            torch.testing.assert_close(mine.keys * mask, other.keys * mask, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(
                mine.values * mask, other.values * mask, atol=1e-4, rtol=1e-4
            )


def test_only_requested_outputs_are_returned(
    target: Any, strategies: dict[str, Strategy], one: Any
) -> None:
    found = target.generate(
        **one,
        max_new_tokens=4,
        do_sample=False,
        return_dict_in_generate=True,
        custom_generate=strategies[DRAFTERS[1]],
    )
    assert found.scores is None
    assert found.logits is None
    assert found[GENERATE_CACHE].get_seq_length() == found.sequences.shape[1] - 1


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_cache_may_be_continued_over_turns(name: str, rows: int) -> None:
    model = cached_model(name)
    start = padded([[5, 9, 33, 7] * 4, [11, 3, 4] * 4, [8, 21, 7, 30, 12] * 3][:rows])
    options = {"do_sample": False, "max_new_tokens": 9, "eos_token_id": None, "pad_token_id": 0}
    strategy = Strategy("prompt_lookup:max_draft_tokens=3,budget=false")
    for ours in ((True, True), (False, True), (True, False)):
        cache = DynamicCache(config=model.config)
        ids, mask = start["input_ids"], start["attention_mask"]
        for turn, mine in enumerate(ours):
            expected = model.generate(ids, attention_mask=mask, **options)
            custom = strategy if mine else None
            found = model.generate(
                ids,
                attention_mask=mask,
                custom_generate=custom,
                **{GENERATE_CACHE: cache},
                **options,
            )
            assert torch.equal(found, expected)
            assert cache.get_seq_length() == found.shape[1] - 1
            if mine and turn:
                assert all(
                    5 <= row.query_tokens[0] <= 8 for row in strategy.stats
                )  # the last token, the next turn and drafts, but no old prompt
            ids = torch.cat([found, torch.tensor([[17, 40, 41, 17]] * rows)], dim=-1)
            mask = torch.cat(
                [mask, torch.ones(rows, ids.shape[1] - mask.shape[1], dtype=torch.long)], dim=-1
            )


def test_an_error_leaves_the_cache_unchanged(target: Any, one: Any) -> None:
    cache = DynamicCache()
    cache_option = {GENERATE_CACHE: cache}
    first = generate(
        target, **one, **cache_option, drafter="prompt_lookup", max_new_tokens=6, eos_token_id=None
    )
    length = cache.get_seq_length()
    with pytest.raises(KeyboardInterrupt):
        generate(
            target,
            first,
            **cache_option,
            drafter="prompt_lookup",
            max_new_tokens=6,
            streamer=Recorder(fail_at=3),
        )
    assert length == first.shape[1] - 1 == cache.get_seq_length()
