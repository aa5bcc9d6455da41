"""Test that bad input is refused before any work, in clear words."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.core.request import Request
from paceline.drafters import available, create
from paceline.errors import (
    CapacityError,
    ConfigError,
    DatastoreError,
    DrafterError,
    PacelineError,
    UnsupportedModelError,
)
from paceline.model.cached_lm import CachedLM
from paceline.util.config import parse_spec
from tests.conftest import DATA
from tests.support.models import make
from tests.support.shared import Pair


def test_the_hierarchy_of_errors() -> None:
    """All errors have one base class, and a ConfigError is also a ValueError."""
    for kind in (ConfigError, UnsupportedModelError, CapacityError, DatastoreError, DrafterError):
        assert issubclass(kind, PacelineError)
    assert issubclass(ConfigError, ValueError)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("promt_lookup", "Did you mean 'prompt_lookup'"),
        ("", "there is no drafter ''"),
        ("turbo", r"'module:Class'\. Expected one of"),
        ("zzz", f"Expected one of: {', '.join(sorted(available()))}"),
        (
            "prompt_lookup:max_draft_token=4",
            "no option 'max_draft_token'. Did you mean 'max_draft_tokens'",
        ),
        ("prompt_lookup:length", "got 'length' .*Write key=value"),
        (
            "prompt_lookup:max_draft_tokens=4,max_draft_tokens=5",
            "got option 'max_draft_tokens' twice",
        ),
        (
            "prompt_lookup:max_draft_tokens=four",
            "^prompt_lookup: max_draft_tokens: got 'four'; expected a whole number",
        ),
        ("prompt_lookup:max_draft_tokens=4.5", "expected a whole number"),
        ("prompt_lookup:max_draft_tokens=0", "max_draft_tokens: got 0; expected at least 1"),
        ("prompt_lookup:min_ngram=0", "min_ngram: got 0"),
        ("prompt_lookup:min_ngram=4,max_ngram=2", "got max_ngram=2 with min_ngram=4; expected"),
        ("none:length=4", "no option 'length'"),
        ("draft_model:max_draft_tokens=0", "max_draft_tokens: got 0"),
        ("draft_model:verification=folow", "Did you mean 'follow'"),
        ("draft_model", "needs a draft model.*Pass draft_model="),
    ],
)
def test_bad_drafter_specs_are_refused(pair: Pair, spec: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        LLM(pair.target, drafter=spec)
    with pytest.raises(ConfigError, match=words):
        create(spec)


def test_keyword_options_are_checked_for_their_types() -> None:
    assert create("prompt_lookup", max_draft_tokens=4).name == "prompt_lookup"
    for value in (True, "x", 2.5, None):
        with pytest.raises(ConfigError, match="expected a whole number"):
            create("prompt_lookup", max_draft_tokens=value)
    with pytest.raises(ConfigError, match="got option 'max_draft_tokens' twice"):
        create("prompt_lookup:max_draft_tokens=4", max_draft_tokens=4)


def test_specs_may_contain_spaces() -> None:
    assert parse_spec("draft_model: length = 4 , verification=follow,") == (
        "draft_model",
        {"length": "4", "verification": "follow"},
    )


def test_vocabularies_must_agree(pair: Pair) -> None:
    with pytest.raises(ConfigError, match=r"97 tokens.*256"):
        LLM(pair.target, drafter="draft_model", draft_model=make("llama"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens: got -1; expected an integer of at least 0"),
        ({"max_new_tokens": 1.5}, "max_new_tokens: got 1.5"),
        ({"max_new_tokens": True}, "max_new_tokens: got True"),
        ({"temperature": -0.1}, "temperature: got -0.1; expected 0"),
        ({"temperature": float("nan")}, "temperature: got nan"),
        ({"temperature": float("inf")}, "temperature: got inf"),
        ({"temperature": "hot"}, "temperature: got 'hot'"),
        ({"top_k": -1}, "top_k: got -1"),
        ({"top_k": 2.0}, "top_k: got 2.0"),
        ({"top_p": 0}, "top_p: got 0; expected above 0 and at most 1"),
        ({"top_p": 2}, "top_p: got 2"),
        ({"min_p": 1.1}, "min_p: got 1.1"),
        ({"min_p": -0.1}, "min_p: got -0.1"),
        ({"repetition_penalty": 0}, "repetition_penalty: got 0"),
        ({"seed": 1.0}, "seed: got 1.0"),
        ({"seed": None}, "seed: got None"),
        ({"stop": ("a", "")}, "stop: got .*non-empty strings"),
        ({"stop": (3,)}, "non-empty strings"),
    ],
)
def test_bad_sampling_params_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SamplingParams(**options)


def test_stop_strings_become_a_tuple() -> None:
    assert SamplingParams(stop="end").stop == ("end",)  # type: ignore[arg-type]
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_batch": 0}, "max_batch: got 0; expected at least 1"),
        ({"max_nodes": -1}, "max_nodes: got -1"),
        ({"max_length": 1}, "max_length: got 1"),
    ],
)
def test_bad_engine_options_are_refused(pair: Pair, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        LLM(pair.target, **options)


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ("no/such/directory", {}, "cannot load a causal language model from 'no/such/directory'"),
        (3, {}, "model: got a int; expected a directory"),
        (
            str(DATA / "tiny_target"),
            {"tokenizer": "no/such/tokenizer"},
            "cannot load a tokenizer from 'no/such/tokenizer'",
        ),
        (
            str(DATA / "tiny_target"),
            {"dtype": "float23"},
            "dtype: got 'float23'. Did you mean 'float32'",
        ),
    ],
)
def test_models_that_cannot_be_loaded_are_refused(
    model: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        LLM(model, **options)


def test_wrapped_models_are_refused_with_advice(pair: Pair) -> None:
    class PeftModel:
        def __init__(self, *known: str) -> None:
            vars(self).update(dict.fromkeys(known))

    for known, words in (
        (
            ("merge_and_unload", "get_base_model"),
            r"got a PeftModel; .* Pass what its merge_and_unload\(\) returns",
        ),
        (("get_base_model",), "cannot be merged into the weights: use its own generate"),
        (("_orig_mod",), "Pass the model that was compiled"),
    ):
        with pytest.raises(ConfigError, match=words):
            LLM(PeftModel(*known), "none")
        with pytest.raises(ConfigError, match=words):
            LLM(pair.target, "draft_model", draft_model=PeftModel(*known))


def test_a_model_without_a_tokenizer_takes_token_ids(pair: Pair) -> None:
    llm = LLM(
        DATA / "tiny_target",
        dtype="float32",
        drafter="draft_model",
        draft_model=DATA / "tiny_noisy_0.05",
    )
    assert llm.generate([pair.prompts[1]], SamplingParams(12))[0].token_ids == pair.answers[1][:12]
    with pytest.raises(
        ConfigError, match="prompt 0: got text and no tokenizer; expected token ids"
    ):
        llm.generate("text")


GOOD = [1, 5, 9]
MESSAGE = {"role": "user", "content": "Hi"}
BAD_PROMPTS: list[tuple[Any, type[Exception], str]] = [
    ([GOOD, []], ConfigError, "prompt 1: got no token; expected at least one"),
    ([GOOD, [1, 256]], ConfigError, r"prompt 1: got token ids from 1 to 256; expected 0 to 255"),
    ([GOOD, [-1, 4]], ConfigError, "prompt 1: got token ids from -1 to 4"),
    ([GOOD, [1] * 64], CapacityError, "prompt 1: got 64 tokens.* expected fewer than 64"),
    (
        [GOOD, [1.0, 2.0]],
        ConfigError,
        "prompt 1: got .*1\\.0.*; expected a text or a list of integer token ids",
    ),
    ([GOOD, [True, False]], ConfigError, "prompt 1: got .*; expected a text or a list"),
    ([GOOD, 7], ConfigError, "prompt 1: got .*; expected a text or a list"),
    ([GOOD, None], ConfigError, "prompt 1: got .*; expected a text or a list"),
    ([GOOD, [MESSAGE]], ConfigError, r"prompt 1: got .*role.* token ids\. For messages, call chat"),
    ([GOOD, MESSAGE], ConfigError, r"pass the token ids from chat_prompt\(messages\)\.$"),
    ([GOOD, "text"], ConfigError, "prompt 1: got text and no tokenizer"),
    ("text", ConfigError, "prompt 0: got text and no tokenizer; expected token ids"),
    (GOOD, ConfigError, r"got one list of token ids; expected a list of such lists"),
    (7, ConfigError, "prompts: got a int"),
    (None, ConfigError, "prompts: got a NoneType"),
]


@pytest.mark.parametrize(
    ("prompts", "kind", "words"), BAD_PROMPTS, ids=[words[:24] for _, _, words in BAD_PROMPTS]
)
def test_one_bad_prompt_is_refused_before_any_work(
    pair: Pair, prompts: Any, kind: type[Exception], words: str
) -> None:
    calls: list[int] = []
    hook = pair.target.register_forward_hook(lambda *_: calls.append(1))
    try:
        llm = LLM(pair.target, "none", max_length=64)
        calls.clear()
        with pytest.raises(kind, match=words):
            llm.generate(prompts, SamplingParams(max_new_tokens=4))
        if isinstance(prompts, list) and len(prompts) == 2:
            with pytest.raises(kind):
                llm.stream(prompts[1], SamplingParams(max_new_tokens=4))
    finally:
        hook.remove()
    assert not calls
    assert llm.model.open_sequences == 0


def test_a_length_above_the_context_is_refused(pair: Pair) -> None:
    context = LLM(pair.target, "none").max_length
    assert LLM(pair.target, "none", max_length=context).max_length == context
    expected = f"got {context + 1}; expected at most {context}, the model's context length"
    with pytest.raises(ConfigError, match=f"max_length: {expected}"):
        LLM(pair.target, "none", max_length=context + 1)


def test_valid_edge_cases_are_accepted(pair: Pair) -> None:
    """Check prompts that barely fit, tuples, tensors and an empty list."""
    llm = LLM(pair.target, "none", max_length=64)
    (out,) = llm.generate([[1] * 63])
    assert (len(out.token_ids), out.finish_reason) == (1, "length")
    expected = llm.generate([GOOD], SamplingParams(4))[0].token_ids
    for prompts in ([tuple(GOOD)], [torch.tensor(GOOD)], (GOOD,)):
        assert llm.generate(prompts, SamplingParams(4))[0].token_ids == expected
    assert llm.generate([]) == []


def test_the_number_of_params_must_match_the_prompts(pair: Pair) -> None:
    llm = LLM(pair.target, "none")
    with pytest.raises(
        ConfigError, match="got 2 SamplingParams for 3 prompts; expected one for all, or one each"
    ):
        llm.generate([GOOD] * 3, [SamplingParams(1)] * 2)


def test_text_needs_a_tokenizer(pair: Pair, tokenizer: Any) -> None:
    llm = LLM(pair.target, "none")
    with pytest.raises(ConfigError, match="stop: got stop strings and no tokenizer"):
        llm.generate([GOOD], SamplingParams(stop=("x",)))
    with pytest.raises(ConfigError, match="no chat template"):
        llm.chat([{"role": "user", "content": "hello"}])
    with pytest.raises(ConfigError, match="no chat template"):
        LLM(pair.target, "none", tokenizer=tokenizer).chat([{"role": "user", "content": "hello"}])
    assert (
        LLM(pair.target, "none", tokenizer=tokenizer).generate("hello", SamplingParams(4))[0].text
    )


def test_attention_without_masks_is_refused(pair: Pair) -> None:
    model = make("flexible")
    model.set_attn_implementation("flex_attention")
    with pytest.raises(
        ConfigError,
        match=r"got .*flex_attention.*expected 'sdpa' or 'eager'.*set_attn_implementation",
    ):
        CachedLM(model)
    model.set_attn_implementation("sdpa")
    assert CachedLM(model).takes_trees


def test_a_model_without_a_head_is_refused() -> None:
    with pytest.raises(
        UnsupportedModelError, match=r"no language-model head.*AutoModelForCausalLM"
    ):
        LLM(make("llama").model, "none")


def test_a_sequence_beyond_the_context_is_refused() -> None:
    model = CachedLM(make("gpt2_short"))
    with pytest.raises(CapacityError, match="29 tokens; the model's context is 28"):
        model.open(Request([1] * 29, SamplingParams()))
