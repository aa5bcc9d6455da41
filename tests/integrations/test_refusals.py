"""Test what a Strategy refuses, and the error messages."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    Cache,
    DynamicCache,
    QuantizedCache,
    StaticCache,
)
from transformers.generation import (
    GenerationConfig,
    StoppingCriteria,
)

from paceline import Drafter
from paceline.errors import CapacityError, ConfigError, UnsupportedModelError
from paceline.integrations.transformers import Strategy, generate
from paceline.model.forward_arguments import GENERATE_CACHE
from tests.integrations.common import (
    VOCAB,
    make_model,
)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_beams": 3}, "num_beams: got 3; expected 1"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "contrastive_search"),
        ({"prompt_lookup_num_tokens": 3}, "assisted_generation"),
        ({"use_cache": False}, "use_cache: got False; expected True"),
        ({"cache_implementation": "static"}, "cache_implementation: got 'static'"),
        ({"cache_implementation": "offloaded"}, "cache_implementation: got 'offloaded'"),
        ({"cache_implementation": "quantized"}, "cache_implementation: got 'quantized'"),
        (
            {"generation_config": GenerationConfig(cache_implementation="quantized")},
            "cache_implementation: got 'quantized'",
        ),
        (
            {"output_attentions": True, "return_dict_in_generate": True},
            "output_attentions: got True",
        ),
        (
            {"output_hidden_states": True, "return_dict_in_generate": True},
            "output_hidden_states: got True",
        ),
        ({"synced_gpus": True}, "synced_gpus"),
        ({"assistant_model": "a model"}, "draft_model="),
        ({"custom_generate": "a path"}, "drafter="),
        ({"stop_strings": ["x"]}, "tokenizer="),
        ({"token_type_ids": torch.zeros(1, 39, dtype=torch.long)}, "token_type_ids"),
        ({"position_ids": torch.arange(3, 42)[None]}, "position_ids"),
        ({"max_new_tokens": 5000}, None),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_unsupported_options_are_refused(
    target: Any, one: Any, options: dict[str, Any], words: str | None
) -> None:
    error = ConfigError if words else CapacityError
    model = _takes_token_types(target) if "token_type_ids" in options else target
    with pytest.raises(error, match=words or "context is 2048"):
        generate(model, **{"max_new_tokens": 4, **one, **options}, drafter="prompt_lookup")


def _takes_token_types(model: Any) -> Any:
    model = copy.copy(model)
    model._validate_model_kwargs = lambda model_kwargs: None
    return model


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ([1, 1, 1, 0], "padding_side='left'"),
        ([1, 0, 1, 1], "padding_side='left'"),
        ([0, 0, 0, 0], "only zeros"),
    ],
)
def test_unsupported_masks_are_refused(target: Any, mask: list[int], words: str) -> None:
    inputs = {
        "input_ids": torch.tensor([[5, 6, 7, 8]] * 2),
        "attention_mask": torch.tensor([[1, 1, 1, 1], mask]),
    }
    with pytest.raises(ConfigError, match=words):
        target.generate(**inputs, max_new_tokens=4, pad_token_id=0, custom_generate=Strategy())


def test_unsupported_caches_are_refused(
    target: Any, one: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_refused(words: str, cache: Any, **changes: Any) -> None:
        inputs = {"max_new_tokens": 4, **one, **changes}
        with pytest.raises(ConfigError, match=words):
            target.generate(**inputs, **{GENERATE_CACHE: cache}, custom_generate=Strategy())

    check_refused("got a StaticCache", StaticCache(config=target.config, max_cache_len=64))
    monkeypatch.setattr(QuantizedCache, "__init__", lambda self: Cache.__init__(self, layers=[]))
    check_refused("got a QuantizedCache", QuantizedCache())
    filled = DynamicCache()
    target.generate(**one, **{GENERATE_CACHE: filled}, max_new_tokens=3)
    check_refused("whole text", filled, input_ids=one["input_ids"][:, :5], attention_mask=None)
    new = {
        "input_ids": torch.tensor([[5, 6]]),
        "attention_mask": torch.ones(1, filled.get_seq_length() + 2, dtype=torch.long),
    }
    check_refused("whole text", filled, **new)
    longer = torch.cat([one["input_ids"], torch.full((1, 9), 7)], dim=-1).repeat(2, 1)
    check_refused(
        "got 1 rows; expected 2",
        filled,
        input_ids=longer,
        attention_mask=torch.ones_like(longer),
        pad_token_id=0,
    )


def test_unsupported_batches_are_refused(target: Any, three: Any) -> None:
    class Never(StoppingCriteria):  # type: ignore[misc]
        def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
            return torch.zeros(len(input_ids), dtype=torch.bool)

    options = {"max_new_tokens": 4, "pad_token_id": 0, "custom_generate": Strategy()}
    with pytest.raises(ConfigError, match="guidance_scale"):
        target.generate(**three, guidance_scale=1.5, **options)
    with pytest.raises(ConfigError, match="eos_token_id and pad_token_id"):
        target.generate(**three, stopping_criteria=[Never()], eos_token_id=None, **options)


def test_adapters_with_virtual_tokens_are_refused(
    target: Any, one: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Imitate PEFT 0.21 during generation, without PEFT.

    Adapters in the weights are supported; adapters with virtual tokens are not.
    """

    class Config:
        is_prompt_learning = False

    class Adapted:
        active_peft_config = Config()
        prepare = target.prepare_inputs_for_generation

        def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> Any:
            return self.prepare(*args, **kwargs)

    adapted = Adapted()
    monkeypatch.setitem(
        vars(target), "prepare_inputs_for_generation", adapted.prepare_inputs_for_generation
    )
    target.generate(**one, max_new_tokens=2, custom_generate=Strategy())
    adapted.active_peft_config.is_prompt_learning = True
    with pytest.raises(
        ConfigError, match="Config: adapters that add virtual tokens are not supported"
    ):
        target.generate(**one, max_new_tokens=2, custom_generate=Strategy())


def test_unsupported_models_and_arguments_are_refused(target: Any, draft: Any, one: Any) -> None:
    embeds = target.get_input_embeddings()(one["input_ids"]).detach()
    with pytest.raises(ConfigError, match="inputs_embeds"):
        target.generate(inputs_embeds=embeds, max_new_tokens=4, custom_generate=Strategy())
    sizes = {
        "vocab_size": VOCAB,
        "d_model": 32,
        "d_ff": 32,
        "d_kv": 8,
        "num_layers": 1,
        "num_heads": 4,
    }
    t5 = AutoModelForSeq2SeqLM.from_config(
        AutoConfig.for_model("t5", decoder_start_token_id=0, **sizes)
    ).eval()
    with pytest.raises(UnsupportedModelError, match="encoder-decoder"):
        t5.generate(one["input_ids"], max_new_tokens=4, custom_generate=Strategy())
    with pytest.raises(ConfigError, match="needs a draft model"):
        Strategy("draft_model")
    with pytest.raises(ConfigError, match="already built"):
        Strategy(Drafter(), draft_model=draft)
    with pytest.raises(ConfigError, match="Strategy is already built"):
        generate(target, **one, drafter=Strategy(), draft_model=draft)
    with pytest.raises(ConfigError, match="vocabulary of 97"):
        generate(
            target,
            **one,
            drafter="draft_model",
            draft_model=make_model("llama", vocab_size=97),
            max_new_tokens=4,
        )
    target.train()
    try:
        with pytest.raises(ConfigError, match=r"model\.eval\(\)"):
            target.generate(**one, max_new_tokens=4, custom_generate=Strategy())
    finally:
        target.eval()
