"""`model.generate` with and without drafts: equal ids, scores, caches, streams and random state, greedy and sampled."""

from __future__ import annotations

import copy
import functools
import gc
import random
from typing import Any

import pytest
import tokenizers
import torch
from shared import ScriptedTree
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    Cache,
    DynamicCache,
    GenerationConfig,
    PreTrainedTokenizerFast,
    QuantizedCache,
    StaticCache,
)
from transformers.generation import (
    BaseStreamer,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
    SynthIDTextWatermarkingConfig,
    TextIteratorStreamer,
)

from paceline import Drafter
from paceline.errors import CapacityError, ConfigError, UnsupportedModelError
from paceline.integrations import hf_decoding
from paceline.integrations.hf_rows import SharedNoise
from paceline.integrations.transformers import Strategy, generate

VOCAB = 256
DRAFTERS = ("none", "prompt_lookup:length=6", "draft_model:length=4")
GREEDY: dict[str, Any] = {"do_sample": False}
PENALISED: dict[str, Any] = {"do_sample": False, "repetition_penalty": 1.3, "no_repeat_ngram_size": 3}
SAMPLED: dict[str, Any] = {
    "do_sample": True,
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.9,
    "min_p": 0.02,
    "repetition_penalty": 1.05,
}
ALL_OUTPUTS: dict[str, Any] = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
ENDS = [2, *range(40, 60)]


_SIZES = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 2048, "initializer_range": 0.25, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
_REACH = {"sliding_window": 8, "head_dim": 16}  # shorter than the prompts
_OPTIONS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 8},
    "gemma2": {"query_pre_attn_scalar": 16, **_REACH},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, **_REACH},
    "falcon": {"alibi": True, "new_decoder_architecture": False, "multi_query": False},
}


def make(name: str, implementation: str = "eager", noise: float = 0.0, **changes: Any) -> Any:
    """A model with random weights, the same ones each time; `noise` makes a draft of it."""
    config = AutoConfig.for_model(name, **{**_SIZES, **_OPTIONS[name], **changes})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval().float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += noise * torch.randn(parameter.shape)
    return model


made = functools.cache(make)


def padded(rows: list[list[int]]) -> dict[str, Tensor]:
    width = max(map(len, rows))
    ids = [[0] * (width - len(row)) + row for row in rows]
    mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def words(seed: int, count: int) -> list[int]:
    return [random.Random(100 * seed + place).randrange(3, VOCAB) for place in range(count)]


@pytest.fixture(scope="module")
def target() -> Any:
    return made("llama", "sdpa")


@pytest.fixture(scope="module")
def draft() -> Any:
    """The target with noise: most of its guesses are right."""
    return made("llama", "sdpa", noise=0.02)


@pytest.fixture(scope="module")
def text() -> Any:
    """A tokenizer whose tokens are pairs of letters."""
    letters = "abcdefghijklmnop"
    pairs = {one + other: 16 * row + column for row, one in enumerate(letters) for column, other in enumerate(letters)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(pairs, unk_token="aa"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(".."), "isolated")
    backend.decoder = tokenizers.decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False)


@pytest.fixture(scope="module")
def one() -> dict[str, Tensor]:
    """A prompt that repeats itself, so that lookups find something."""
    return padded([words(1, 13) * 3])


@pytest.fixture(scope="module")
def three() -> dict[str, Tensor]:
    """Three such prompts of different length, padded on the left."""
    return padded([words(2, 10) * 3, words(1, 13) * 3, words(3, 18) * 2])


@pytest.fixture(scope="module")
def strategies(draft: Any) -> dict[str, Strategy]:
    return {spec: Strategy(spec, draft_model=draft) for spec in DRAFTERS}


def both(model: Any, strategy: Any, inputs: dict[str, Any], seed: int = 0, **options: Any) -> tuple[Any, Any]:
    """The results of transformers and of the drop-in; the random state afterwards must be the same."""
    options = {"pad_token_id": 0, "eos_token_id": None, "max_new_tokens": 24, **options}
    torch.manual_seed(seed)
    expected = model.generate(**copy.deepcopy(inputs), **options)
    next_draw = torch.rand(3)
    torch.manual_seed(seed)
    found = model.generate(**copy.deepcopy(inputs), **options, custom_generate=strategy)
    assert torch.equal(torch.rand(3), next_draw)
    return expected, found


def accepted(strategy: Strategy) -> int:
    return sum(row.accepted_tokens for row in strategy.stats)


class Recorder(BaseStreamer):  # type: ignore[misc]
    """Keeps every value; `fail_at` raises after so many."""

    def __init__(self, fail_at: int = 1 << 30) -> None:
        self.values: list[Tensor] = []
        self.ended = 0
        self._fail_at = fail_at

    def put(self, value: Tensor) -> None:
        if len(self.values) == self._fail_at:
            raise KeyboardInterrupt
        self.values.append(value)

    def end(self) -> None:
        self.ended += 1


# Greedy and sampled identity


@pytest.mark.parametrize("options", [GREEDY, PENALISED], ids=["plain", "penalised"])
@pytest.mark.parametrize("spec", DRAFTERS)
def test_greedy_ids_are_those_of_generate(
    target: Any, strategies: dict[str, Strategy], one: Any, three: Any, spec: str, options: dict[str, Any]
) -> None:
    strategy = strategies[spec]
    drafts_accepted = 0
    for inputs in (one, three):
        expected, found = both(target, strategy, inputs, **options)
        assert torch.equal(found, expected)
        assert found.dtype == torch.long
        drafts_accepted += accepted(strategy)
    assert (drafts_accepted > 0) == (spec.startswith("draft_model") or (spec != "none" and options is GREEDY))


@pytest.mark.parametrize("spec", DRAFTERS)
def test_sampled_ids_and_random_state_are_those_of_generate(
    target: Any, strategies: dict[str, Strategy], one: Any, three: Any, spec: str
) -> None:
    strategy = strategies[spec]
    drafts_accepted = 0
    lengths: set[int] = set()
    for inputs in (one, three):
        for seed in range(4):
            expected, found = both(target, strategy, inputs, seed, eos_token_id=ENDS if seed % 2 else None, **SAMPLED)
            assert torch.equal(found, expected)
            drafts_accepted += accepted(strategy)
            lengths.update(row.new_tokens for row in strategy.stats)
    assert (drafts_accepted > 0) == (spec != "none")
    assert len(lengths) > 4  # rows ended at different steps


@pytest.mark.parametrize("options", [GREEDY, PENALISED, SAMPLED], ids=["plain", "penalised", "sampled"])
def test_trees_with_side_branches(target: Any, three: Any, options: dict[str, Any]) -> None:
    side_branches = 0
    for seed in range(3):
        torch.manual_seed(seed)
        ids = target.generate(**three, pad_token_id=0, eos_token_id=None, max_new_tokens=24, **options)
        width = three["input_ids"].shape[1]
        rows = zip(three["input_ids"], three["attention_mask"], ids, strict=True)
        answers = {tuple(row[mask.bool()].tolist()): full[width:].tolist() for row, mask, full in rows}
        drafter = ScriptedTree(answers, VOCAB, seed)
        strategy = Strategy(drafter)
        expected, found = both(target, strategy, three, seed, **options)
        assert torch.equal(found, expected)
        assert all(row.tokens_per_forward > 1 for row in strategy.stats)
        side_branches += drafter.side_branches
    assert side_branches > 5


@pytest.mark.parametrize(
    ("name", "implementation"), [("mistral", "sdpa"), ("gemma2", "eager"), ("gpt_oss", "eager"), ("falcon", "eager")]
)
def test_other_attention(name: str, implementation: str) -> None:
    model = made(name, implementation)
    inputs = padded([[5, 9, 33, 7] * 4, [11, 3, 4] * 4, [8, 21, 7, 30, 12] * 3])
    strategy = Strategy("prompt_lookup:length=5")
    for options in (GREEDY, SAMPLED):
        expected, found = both(model, strategy, inputs, **options)
        assert torch.equal(found, expected)
        expected, found = both(model, strategy, {"input_ids": inputs["input_ids"][:1]}, **options)
        assert torch.equal(found, expected)


def test_prompts_longer_than_a_prefill_chunk(target: Any, three: Any) -> None:
    strategy = Strategy("prompt_lookup")
    both(target, strategy, three)
    (_, _, engine) = strategy._engines[target]
    engine.prefill_chunk = 32  # of 39, 36 and 30 tokens
    expected, found = both(target, strategy, three, **SAMPLED)
    assert torch.equal(found, expected)
    assert [row.prefill_forwards for row in strategy.stats] == [1, 2, 2]


def test_several_answers_per_prompt(target: Any, strategies: dict[str, Strategy], three: Any) -> None:
    options = {**SAMPLED, "encoder_repetition_penalty": 1.2, "num_return_sequences": 2}
    single = {name: value[:1] for name, value in three.items()}
    expected, found = both(target, strategies[DRAFTERS[2]], single, **options)
    assert found.shape[0] == 2
    assert torch.equal(found, expected)


# The draw


def test_shared_noise_is_that_of_multinomial() -> None:
    probs = torch.rand(8, 3, 97, generator=torch.Generator().manual_seed(1)).softmax(-1)  # [step, row, vocab]
    torch.manual_seed(3)
    expected = [torch.multinomial(step, 1)[:, 0].tolist() for step in probs]
    after = torch.rand(2)
    torch.manual_seed(3)
    noise = SharedNoise(3, torch.device("cpu"))
    order = [(2, step) for step in range(8)] + [(0, step) for step in range(4)] + [(1, step) for step in range(8)]
    for row, step in order:
        assert int((probs[step, row] / noise.take(row, step, 97)).argmax()) == expected[step][row]
    assert torch.equal(torch.rand(2), after)
    assert noise.kept == 4  # row 0 has steps 4 to 7 before it
    noise.leave(0)
    assert noise.kept == 0


def test_noise_drawn_as_rows_come_would_be_noticed(target: Any, draft: Any, three: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class AsTheyCome(SharedNoise):
        def take(self, row: int, step: int, vocab: int) -> Tensor:
            return torch.empty(vocab).exponential_(1)

    monkeypatch.setattr(hf_decoding, "SharedNoise", AsTheyCome)
    torch.manual_seed(0)
    expected = target.generate(**three, **SAMPLED, pad_token_id=0, max_new_tokens=24)
    torch.manual_seed(0)
    strategy = Strategy("draft_model:length=4", draft)
    found = target.generate(**three, **SAMPLED, pad_token_id=0, max_new_tokens=24, custom_generate=strategy)
    assert accepted(strategy) > 0
    assert not torch.equal(found, expected)


# Processors and criteria


class SeenScores(LogitsProcessor):  # type: ignore[misc]
    def __init__(self) -> None:
        self.prefixes: list[list[int]] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        assert scores.dtype == torch.float32
        self.prefixes += input_ids.tolist()
        return scores


class SeenTokens(StoppingCriteria):  # type: ignore[misc]
    def __init__(self) -> None:
        self.prefixes: list[list[int]] = []

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        self.prefixes += input_ids.tolist()
        return torch.zeros(len(input_ids), dtype=torch.bool)


def test_processors_and_criteria_see_every_true_prefix_once(
    target: Any, strategies: dict[str, Strategy], one: Any, three: Any
) -> None:
    for inputs in (one, three):
        seen = []
        for strategy in (None, strategies[DRAFTERS[2]]):
            processor, criterion = SeenScores(), SeenTokens()
            target.generate(
                **inputs, do_sample=False, max_new_tokens=12, eos_token_id=2, pad_token_id=0, custom_generate=strategy,
                logits_processor=LogitsProcessorList([processor]), stopping_criteria=StoppingCriteriaList([criterion]),
            )  # fmt: skip
            seen.append((processor.prefixes, criterion.prefixes))
        for theirs, ours in zip(*seen, strict=True):
            assert sorted(theirs) == sorted(ours)
            assert len(inputs["input_ids"]) > 1 or theirs == ours


def test_processors_that_know_the_batch(target: Any, strategies: dict[str, Strategy], three: Any) -> None:
    strategy = strategies[DRAFTERS[1]]
    keys = {"keys": [654, 400, 836, 123, 340], "ngram_len": 4, "sampling_table_size": 4096}
    for options in (
        {"prefix_allowed_tokens_fn": lambda batch_id, ids: list(range(batch_id * 80, batch_id * 80 + 80))},
        {"encoder_no_repeat_ngram_size": 2, "encoder_repetition_penalty": 1.3, **GREEDY},
        {"watermarking_config": SynthIDTextWatermarkingConfig(**keys), "do_sample": True, "top_k": 30},
    ):
        expected, found = both(target, strategy, three, **options)
        assert torch.equal(found, expected)


def test_guidance_with_one_prompt(target: Any, strategies: dict[str, Strategy], one: Any) -> None:
    expected, found = both(target, strategies[DRAFTERS[2]], one, guidance_scale=1.5, **SAMPLED)
    assert torch.equal(found, expected)


def test_time_limit(target: Any, strategies: dict[str, Strategy], three: Any) -> None:
    for strategy in strategies.values():
        expected, found = both(target, strategy, three, max_time=1e-9, eos_token_id=2)
        assert torch.equal(found, expected)
        assert found.shape[1] == three["input_ids"].shape[1] + 1


def test_no_token_follows_an_end(target: Any, one: Any, draft: Any) -> None:
    answer = target.generate(**one, do_sample=False, max_new_tokens=20, eos_token_id=None)[0, one["input_ids"].shape[1] :]
    strategy = Strategy("draft_model:length=8", draft_model=target)  # every guess is right: all ends are inside a run
    for place in (0, 3, 11):
        ends = [int(answer[place]), 254, 255]
        expected, found = both(target, strategy, one, eos_token_id=ends, **GREEDY)
        assert torch.equal(found, expected)
    for length in range(1, 14):
        expected, found = both(target, strategy, one, max_new_tokens=length, **GREEDY)
        assert torch.equal(found, expected)


def test_stop_strings_wherever_they_are_set(target: Any, text: Any, three: Any) -> None:
    width = three["input_ids"].shape[1]
    plain = target.generate(**three, do_sample=False, max_new_tokens=24, pad_token_id=0)
    stops = [text.decode(row[width + at : width + at + 2]) for row, at in zip(plain, (5, 12), strict=False)]
    common = {**three, "do_sample": False, "max_new_tokens": 24, "pad_token_id": 0, "tokenizer": text}
    expected = target.generate(**common, stop_strings=stops)
    assert not torch.equal(expected, plain)
    strategy = Strategy("draft_model:length=6", draft_model=target)
    assert torch.equal(generate(target, **common, stop_strings=stops, drafter=strategy), expected)
    assert {row.new_tokens for row in strategy.stats} != {24}

    config = GenerationConfig(do_sample=False, max_new_tokens=24, pad_token_id=0, eos_token_id=2, stop_strings=stops)
    before = copy.deepcopy(config.to_dict())
    found = generate(target, **three, generation_config=config, tokenizer=text, drafter=strategy)
    assert torch.equal(found, expected)
    assert config.to_dict() == before

    model = copy.copy(target)
    model.generation_config = copy.deepcopy(target.generation_config)
    model.generation_config.stop_strings = stops
    assert torch.equal(generate(model, **common, drafter="prompt_lookup"), expected)
    assert model.generation_config.stop_strings == stops
    with pytest.raises(ConfigError, match="tokenizer"):
        generate(model, **three, drafter="prompt_lookup")


# Results


def test_scores_logits_and_cache_of_rows_that_end_at_different_steps(
    target: Any, strategies: dict[str, Strategy], three: Any
) -> None:
    for strategy in strategies.values():
        expected, found = both(target, strategy, three, eos_token_id=ENDS, **SAMPLED, **ALL_OUTPUTS)
        assert len({row.new_tokens for row in strategy.stats}) > 1
        assert type(found) is type(expected)
        assert torch.equal(found.sequences, expected.sequences)
        for name in ("scores", "logits"):
            assert len(found[name]) == len(expected[name])
            for ours, theirs in zip(found[name], expected[name], strict=True):
                torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-4)
        seen = torch.cat([three["attention_mask"], torch.ones_like(found.sequences)], dim=-1)[:, None, :, None]
        for mine, other in zip(found.past_key_values.layers, expected.past_key_values.layers, strict=True):
            mask = seen[:, :, : other.keys.shape[2]]
            assert not mine.keys.is_inference()
            torch.testing.assert_close(mine.keys * mask, other.keys * mask, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(mine.values * mask, other.values * mask, atol=1e-4, rtol=1e-4)


def test_only_what_was_asked_for_is_returned(target: Any, strategies: dict[str, Strategy], one: Any) -> None:
    found = target.generate(
        **one, max_new_tokens=4, do_sample=False, return_dict_in_generate=True, custom_generate=strategies[DRAFTERS[1]]
    )
    assert found.scores is None
    assert found.logits is None
    assert found.past_key_values.get_seq_length() == found.sequences.shape[1] - 1


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_cache_is_continued_over_turns(name: str, rows: int) -> None:
    model = made(name)
    start = padded([[5, 9, 33, 7] * 4, [11, 3, 4] * 4, [8, 21, 7, 30, 12] * 3][:rows])
    options = {"do_sample": False, "max_new_tokens": 9, "eos_token_id": None, "pad_token_id": 0}
    strategy = Strategy("prompt_lookup:length=3")
    for ours in ((True, True), (False, True), (True, False)):
        cache = DynamicCache(config=model.config)
        ids, mask = start["input_ids"], start["attention_mask"]
        for turn, mine in enumerate(ours):
            expected = model.generate(ids, attention_mask=mask, **options)
            custom = strategy if mine else None
            found = model.generate(ids, attention_mask=mask, past_key_values=cache, custom_generate=custom, **options)
            assert torch.equal(found, expected)
            assert cache.get_seq_length() == found.shape[1] - 1
            if mine and turn:
                assert all(5 <= row.fed[0] <= 8 for row in strategy.stats)  # last token, next turn, drafts; no old prompt
            ids = torch.cat([found, torch.tensor([[17, 40, 41, 17]] * rows)], dim=-1)
            mask = torch.cat([mask, torch.ones(rows, ids.shape[1] - mask.shape[1], dtype=torch.long)], dim=-1)


def test_an_error_leaves_a_cache_as_it_was(target: Any, one: Any) -> None:
    cache = DynamicCache()
    first = generate(target, **one, past_key_values=cache, drafter="prompt_lookup", max_new_tokens=6, eos_token_id=None)
    held = cache.get_seq_length()
    with pytest.raises(KeyboardInterrupt):
        generate(target, first, past_key_values=cache, drafter="prompt_lookup", max_new_tokens=6, streamer=Recorder(fail_at=3))
    assert held == first.shape[1] - 1 == cache.get_seq_length()


# Streams


@pytest.mark.parametrize("spec", DRAFTERS)
def test_a_streamer_gets_what_transformers_gives_it(target: Any, draft: Any, one: Any, three: Any, spec: str) -> None:
    for inputs in (one, three):
        ours, theirs = Recorder(), Recorder()
        options = {**GREEDY, "max_new_tokens": 24, "eos_token_id": ENDS, "pad_token_id": 0}
        target.generate(**inputs, **options, streamer=theirs)
        generate(target, **inputs, **options, streamer=ours, drafter=spec, draft_model=draft)
        assert len(ours.values) == len(theirs.values)
        assert all(torch.equal(*pair) for pair in zip(ours.values, theirs.values, strict=True))
        assert ours.ended == 1


def test_text_streams_end_also_after_an_error(target: Any, text: Any, one: Any) -> None:
    streamer = TextIteratorStreamer(text, timeout=5)
    found = generate(target, **one, streamer=streamer, drafter="prompt_lookup", max_new_tokens=8)
    assert "".join(streamer) == text.decode(found[0])
    broken: dict[str, Any]
    for broken in ({"use_cache": False}, {"assistant_model": target}, {"drafter": "nonsense"}):
        streamer = TextIteratorStreamer(text, timeout=5, skip_prompt=True)
        with pytest.raises(ConfigError):
            generate(target, **one, streamer=streamer, max_new_tokens=8, **{"drafter": "none", **broken})
        assert "".join(streamer) == ""


# What is refused


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_beams": 3}, "num_beams is 3; allowed is 1"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "contrastive_search"),
        ({"prompt_lookup_num_tokens": 3}, "assisted_generation"),
        ({"use_cache": False}, "use_cache is False"),
        ({"cache_implementation": "static"}, "cache_implementation is 'static'"),
        ({"cache_implementation": "offloaded"}, "cache_implementation is 'offloaded'"),
        ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions is True"),
        ({"output_hidden_states": True, "return_dict_in_generate": True}, "output_hidden_states is True"),
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
def test_options_that_are_refused(target: Any, one: Any, options: dict[str, Any], words: str | None) -> None:
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
    [([1, 1, 1, 0], "padding_side='left'"), ([1, 0, 1, 1], "padding_side='left'"), ([0, 0, 0, 0], "all zeros")],
)
def test_masks_that_are_refused(target: Any, mask: list[int], words: str) -> None:
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8]] * 2), "attention_mask": torch.tensor([[1, 1, 1, 1], mask])}
    with pytest.raises(ConfigError, match=words):
        target.generate(**inputs, max_new_tokens=4, pad_token_id=0, custom_generate=Strategy())


def test_caches_that_are_refused(target: Any, one: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(words: str, cache: Any, **changes: Any) -> None:
        inputs = {"max_new_tokens": 4, **one, **changes}
        with pytest.raises(ConfigError, match=words):
            target.generate(**inputs, past_key_values=cache, custom_generate=Strategy())

    refused("is a StaticCache", StaticCache(config=target.config, max_cache_len=64))
    monkeypatch.setattr(QuantizedCache, "__init__", lambda self: Cache.__init__(self, layers=[]))
    refused("is a QuantizedCache", QuantizedCache())
    held = DynamicCache()
    target.generate(**one, past_key_values=held, max_new_tokens=3)
    refused("whole text", held, input_ids=one["input_ids"][:, :5], attention_mask=None)
    new = {"input_ids": torch.tensor([[5, 6]]), "attention_mask": torch.ones(1, held.get_seq_length() + 2, dtype=torch.long)}
    refused("whole text", held, **new)
    longer = torch.cat([one["input_ids"], torch.full((1, 9), 7)], dim=-1).repeat(2, 1)
    refused("1 rows and input_ids 2", held, input_ids=longer, attention_mask=torch.ones_like(longer), pad_token_id=0)


def test_batches_that_are_refused(target: Any, three: Any) -> None:
    class Never(StoppingCriteria):  # type: ignore[misc]
        def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
            return torch.zeros(len(input_ids), dtype=torch.bool)

    options = {"max_new_tokens": 4, "pad_token_id": 0, "custom_generate": Strategy()}
    with pytest.raises(ConfigError, match="guidance_scale"):
        target.generate(**three, guidance_scale=1.5, **options)
    with pytest.raises(ConfigError, match="eos_token_id and pad_token_id"):
        target.generate(**three, stopping_criteria=[Never()], eos_token_id=None, **options)


def test_models_and_arguments_that_are_refused(target: Any, draft: Any, one: Any) -> None:
    embeds = target.get_input_embeddings()(one["input_ids"]).detach()
    with pytest.raises(ConfigError, match="inputs_embeds"):
        target.generate(inputs_embeds=embeds, max_new_tokens=4, custom_generate=Strategy())
    sizes = {"vocab_size": VOCAB, "d_model": 32, "d_ff": 32, "d_kv": 8, "num_layers": 1, "num_heads": 4}
    t5 = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model("t5", decoder_start_token_id=0, **sizes)).eval()
    with pytest.raises(UnsupportedModelError, match="encoder-decoder"):
        t5.generate(one["input_ids"], max_new_tokens=4, custom_generate=Strategy())
    with pytest.raises(ConfigError, match="needs a draft model"):
        Strategy("draft_model")
    with pytest.raises(ConfigError, match="finished drafter"):
        Strategy(Drafter(), draft_model=draft)
    with pytest.raises(ConfigError, match="finished Strategy"):
        generate(target, **one, drafter=Strategy(), draft_model=draft)
    with pytest.raises(ConfigError, match="vocabulary of 97"):
        generate(target, **one, drafter="draft_model", draft_model=make("llama", vocab_size=97), max_new_tokens=4)
    target.train()
    try:
        with pytest.raises(ConfigError, match=r"model\.eval\(\)"):
            target.generate(**one, max_new_tokens=4, custom_generate=Strategy())
    finally:
        target.eval()


# What a Strategy keeps


def test_nothing_is_left_after_an_interruption(target: Any, draft: Any, three: Any) -> None:
    scripted = ScriptedTree({}, VOCAB)
    for drafter in ("prompt_lookup", "draft_model", scripted):
        strategy = Strategy(drafter, draft_model=draft if drafter == "draft_model" else None)
        streamer = Recorder(fail_at=0 if drafter is scripted else 4)
        error = KeyError if drafter is scripted else KeyboardInterrupt  # the script has no answers: `propose` raises
        with pytest.raises((error, KeyboardInterrupt)):
            generate(target, **three, drafter=strategy, streamer=streamer, max_new_tokens=20, pad_token_id=0)
        assert streamer.ended == 1
        for engine in [held[2] for held in strategy._engines.values()]:
            assert engine.open_sequences == 0
        state = [value for value in vars(strategy.drafter).values() if isinstance(value, dict)]
        assert not any(state)
        assert getattr(strategy.drafter, "_draft", None) is None or strategy.drafter._draft.open_sequences == 0  # type: ignore[attr-defined]
        expected, found = both(target, Strategy() if drafter is scripted else strategy, three)
        assert torch.equal(found, expected)


def test_a_drafter_that_fails_leaves_no_slot(target: Any, three: Any) -> None:
    drafter = ScriptedTree({}, VOCAB)
    strategy = Strategy(drafter)
    with pytest.raises(KeyError):
        both(target, strategy, three)
    assert drafter.state == set()
    assert strategy._engines[target][2].open_sequences == 0


def test_the_engine_is_kept_until_the_model_changes() -> None:
    fresh = make("llama", "sdpa")
    strategy = Strategy("prompt_lookup")
    inputs = padded([[5, 9, 33, 7] * 4, [11, 3, 4] * 4])
    both(fresh, strategy, inputs)
    engine = strategy._engines[fresh][2]
    expected, found = both(fresh, strategy, inputs)
    assert strategy._engines[fresh][2] is engine
    fresh.set_attn_implementation("eager")  # another kind of mask: the old engine's would be wrong
    expected, found = both(fresh, strategy, inputs)
    assert torch.equal(found, expected)
    assert strategy._engines[fresh][2] is not engine
    fresh.double()
    expected, found = both(fresh, strategy, padded([[5, 9, 33, 7] * 4]))
    assert torch.equal(found, expected)


def test_a_model_can_go(one: Any) -> None:
    strategy = Strategy()
    model = make("llama")
    model.generate(one["input_ids"], max_new_tokens=2, custom_generate=strategy)
    assert len(strategy._engines) == 1
    del model
    gc.collect()
    assert len(strategy._engines) == 0


def test_configurations_are_not_changed(target: Any, strategies: dict[str, Strategy], three: Any) -> None:
    before = copy.deepcopy(target.generation_config.to_dict()), copy.deepcopy(target.config.to_dict())
    for strategy in strategies.values():
        both(target, strategy, three, **SAMPLED)
    assert (target.generation_config.to_dict(), target.config.to_dict()) == before


def test_a_call_inside_a_call_is_refused(target: Any, one: Any) -> None:
    strategy = Strategy()

    class Nested(LogitsProcessor):  # type: ignore[misc]
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            target.generate(input_ids, max_new_tokens=1, custom_generate=strategy)
            return scores

    with pytest.raises(ConfigError, match="inside its own generate"):
        target.generate(**one, max_new_tokens=4, logits_processor=[Nested()], custom_generate=strategy)
    assert torch.equal(*both(target, strategy, one))


def test_memory_grows_with_the_answer(target: Any) -> None:
    strategy = Strategy("prompt_lookup")
    options = {"do_sample": False, "max_new_tokens": 700, "eos_token_id": None, "custom_generate": strategy}
    ids = target.generate(**padded([words(4, 10)]), **options)
    assert strategy.stats[0].new_tokens == 700
    logits = target(ids[:, :-1]).logits  # where two tokens are nearly as likely, rounding decides
    margin = logits[0, 9:].topk(2).values.diff().abs().min()
    assert margin < 1e-3 or torch.equal(logits[0, 9:].argmax(-1), ids[0, 10:])
