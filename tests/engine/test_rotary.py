"""Test rotary frequencies that depend on the text length.

Every request has the frequencies of its own text, whatever else is in the batch.
"""

from __future__ import annotations

import copy
import functools
import random
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version

from paceline import LLM, DraftTree, SamplingParams, ScriptedDrafter
from paceline.core.drafter import Drafter
from paceline.core.request import Request
from paceline.engine.engine import Engine
from paceline.errors import UnsupportedModelError
from paceline.integrations.transformers import Strategy
from paceline.invariance.invariance import resolve_batch_invariance
from paceline.model.cached_lm import CachedLM
from paceline.model.forward_arguments import GENERATE_CACHE
from paceline.model.rotary import TextLengths, cut_at_switch, switch_lengths
from paceline.model.self_check import count_differing_rows
from tests.support import models
from tests.support.drafters import ScriptedTree
from tests.support.rotary_models import ROTARY, SWITCH
from tests.support.shared import reference
from tests.support.tree_models import VOCAB

COUNT = 14
PARAMS = SamplingParams(max_new_tokens=COUNT, ignore_eos=True)
LONG = [name for name in ROTARY if "longrope" in name]
RESTARTING = [name for name in LONG if name.startswith("phi")]
BOUNDED = [name for name in ROTARY if "dynamic" in name]
FEW = ("phi3_longrope", "llama_dynamic")  # the other models run the same code
WITH_INVARIANCE = [
    pytest.param(
        name,
        invariant,
        drafts,
        marks=() if name in FEW or (invariant, drafts) == ("auto", "right") else pytest.mark.slow,
    )
    for name in ROTARY
    for invariant in (False, "auto")
    for drafts in ("none", "right", "random")
]
AS_DRAFTS = [
    pytest.param(name, spec, marks=() if number == 0 or name in FEW else pytest.mark.slow)
    for name in (*LONG, *BOUNDED)
    for number, spec in enumerate(
        (
            "draft_model:budget=false",
            "draft_model:max_draft_tokens=4,use_prompt_lookup=true",
            "ouroboros",
        )
    )
]
LENGTHS = (10, SWITCH - 9, SWITCH + 16, SWITCH, SWITCH - 1, SWITCH + 1, 3 * SWITCH)


MOST_SLOW = [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in ROTARY]


@functools.cache
def make(name: str) -> Any:
    """Return a model without end-of-sequence tokens.

    Skip the test where transformers itself fails beyond the switch length.
    """
    model = copy.deepcopy(models.make(name, "sdpa"))
    model.generation_config.eos_token_id = None
    if name in LONG and Version(transformers.__version__) < Version("5.24"):
        pytest.skip("before 5.24 generate may lose the text at the switch")
    return model


def prompts(name: str, lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> list[list[int]]:
    """Return prompts of these lengths, limited by the model's context."""
    rng = random.Random(seed)
    most = SWITCH - COUNT if name in BOUNDED else max(lengths)
    return [[rng.randrange(3, VOCAB) for _ in range(min(length, most))] for length in lengths]


def random_trees() -> Drafter:
    """Return a drafter whose random trees are almost always wrong."""
    rng = random.Random(3)

    def tree(limit: int) -> DraftTree:
        size = min(limit, rng.randrange(8))
        tokens = rng.sample(range(VOCAB), size)
        return DraftTree(tokens, [rng.randrange(-1, node) if node else -1 for node in range(size)])

    return ScriptedDrafter(lambda requests, limits: [tree(limit) for limit in limits])


def known_answers(model: Any, each: list[list[int]]) -> dict[tuple[int, ...], list[int]]:
    return {tuple(prompt): reference(model, prompt, COUNT) for prompt in each}


@pytest.mark.parametrize(("name", "invariant", "drafts"), WITH_INVARIANCE)
def test_batches_of_short_and_long_texts(name: str, invariant: Any, drafts: str) -> None:
    model = make(name)
    each = prompts(name)
    known = known_answers(model, each)
    drafters: dict[str, str | Drafter] = {
        "none": "none",
        "right": ScriptedTree(known, VOCAB),
        "random": random_trees(),
    }
    llm = LLM(model, drafters[drafts], batch_invariant=invariant, max_batch=3)
    llm.model.prefill_chunk = 24  # so that long prompts have several chunks
    assert [out.token_ids for out in llm.generate(each, PARAMS)] == [*known.values()]


@pytest.mark.parametrize("name", MOST_SLOW)
def test_correct_drafts_are_accepted_across_the_switch(name: str) -> None:
    model = make(name)
    each = prompts(name, (SWITCH - 9,))
    known = known_answers(model, each)
    drafter = ScriptedTree(known, VOCAB)
    (out,) = LLM(model, drafter, max_batch=1).generate(each, PARAMS)
    assert out.token_ids == known[tuple(each[0])]
    assert out.stats.target_forwards < COUNT - 5


@pytest.mark.parametrize("name", MOST_SLOW)
def test_prefixes_are_reused_with_equal_frequencies_only(name: str) -> None:
    model = make(name)
    (text,) = prompts(name, (3 * SWITCH,))
    llm = LLM(model, "prompt_lookup", keep_prefixes=4, max_batch=2)
    for length in (40, 44, SWITCH + 20, SWITCH + 30, 42, SWITCH - 3, 50):
        prompt = text[:length]
        assert llm.generate([prompt], PARAMS)[0].token_ids == reference(model, prompt, COUNT)
    assert llm.load.prefix_hits > 0


@pytest.mark.parametrize("name", LONG)
def test_no_prefix_is_reused_across_the_switch(name: str) -> None:
    (text,) = prompts(name, (3 * SWITCH,))
    llm = LLM(make(name), "none", keep_prefixes=4)
    one = SamplingParams(max_new_tokens=2, ignore_eos=True)
    llm.generate([text[:40]], one)
    assert llm.generate([text[: SWITCH + 20]], one)[0].stats.cached_tokens == 0
    assert llm.generate([text[:41]], one)[0].stats.cached_tokens == 40
    assert llm.generate([text[: SWITCH + 21]], one)[0].stats.cached_tokens == SWITCH + 20


@pytest.mark.parametrize("name", MOST_SLOW)
def test_preempted_requests_keep_their_text(name: str) -> None:
    model = make(name)
    each = prompts(name, (SWITCH - 5, SWITCH + 8, 12))
    known = known_answers(model, each)
    for steps in (2, 4, 9):
        drafter = ScriptedTree(known, VOCAB)
        engine = Engine(model, drafter, max_batch=1)
        requests = [
            Request(prompt, SamplingParams(max_new_tokens=COUNT, ignore_eos=True, priority=-place))
            for place, prompt in enumerate(each)
        ]
        handles = []
        for request in requests:
            handles += engine.submit([request])
            for _ in range(steps):
                engine.step()
        engine.finish(handles)
        assert [request.output_ids for request in requests] == [*known.values()]
        assert engine.load.preemptions > 0 or steps == 9


@pytest.mark.parametrize("name", ["phi3_longrope", "llama_longrope", "llama_dynamic"])
def test_sampled_text_is_the_same_with_drafts(name: str) -> None:
    model = make(name)
    each = prompts(name, (SWITCH - 9, SWITCH + 3, 20))
    params = SamplingParams(max_new_tokens=COUNT, ignore_eos=True, temperature=0.8, seed=3)
    plain = [LLM(model, "none").generate([prompt], params)[0].token_ids for prompt in each]
    for drafter in (
        "prompt_lookup",
        ScriptedTree({tuple(p): a for p, a in zip(each, plain, strict=True)}, VOCAB),
    ):
        assert [out.token_ids for out in LLM(model, drafter).generate(each, params)] == plain


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=() if name in ("phi3_longrope", "llama_longrope") else pytest.mark.slow
        )
        for name in LONG
    ],
)
def test_bits_do_not_depend_on_texts_of_other_lengths(name: str) -> None:
    if name.startswith("phimoe"):
        pytest.skip("a mixture of experts, which is refused")
    model = copy.deepcopy(make(name)).to(torch.bfloat16)
    each = prompts(name)
    plain = LLM(model, "none", batch_invariant=True)
    alone = [plain.generate([prompt], PARAMS)[0].token_ids for prompt in each]
    known = {tuple(prompt): answer for prompt, answer in zip(each, alone, strict=True)}
    llm = LLM(model, ScriptedTree(known, VOCAB), batch_invariant=True, max_batch=3)
    assert [out.token_ids for out in llm.generate(each, PARAMS)] == alone


def test_probe_notices_frequencies_of_the_longest_row(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("llama_longrope")
    invariance = resolve_batch_invariance(model, True)
    lms = [CachedLM(model, **invariance.model_options(chunk)) for chunk in (512, 8)]
    assert count_differing_rows(*lms)[0] == 0
    right = TextLengths.set

    def use_longest(self: TextLengths, *arguments: Any) -> None:
        right(self, *arguments)
        assert self.of_tokens is not None
        self.of_tokens[:] = self.of_tokens.max()

    monkeypatch.setattr(TextLengths, "set", use_longest)
    assert count_differing_rows(*lms)[0] > 0


@pytest.mark.parametrize(
    "name", ["phi3_longrope", "llama_longrope", "gemma3_longrope", "llama_dynamic"]
)
def test_generate_with_drafts_equals_generate(name: str) -> None:
    model = make(name)
    strategy = Strategy("prompt_lookup")
    for prompt in prompts(name):
        ids = torch.tensor([prompt])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=COUNT,
            do_sample=False,
            custom_generate=strategy,
        )
        assert out[0, len(prompt) :].tolist() == reference(model, prompt, COUNT)


@pytest.mark.parametrize("name", ["phi3_longrope", "llama_longrope"])
@pytest.mark.parametrize("lengths", [(20, 30), (50, 30), (50, 10), (SWITCH + 5, 10), (40, 40)])
def test_cache_continues_over_turns(name: str, lengths: tuple[int, int]) -> None:
    """Check second turns that start below or beyond the switch, or cross it."""
    model = make(name)
    first, more = prompts(name, lengths)

    def two_turns(**options: Any) -> tuple[list[int], Any]:
        turn = {"max_new_tokens": 8, "do_sample": False, "return_dict_in_generate": True, **options}
        ids = torch.tensor([first])
        one = model.generate(ids, attention_mask=torch.ones_like(ids), **turn)
        ids = torch.cat([one.sequences, torch.tensor([more])], dim=-1)
        two = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            **turn,
            **{GENERATE_CACHE: one[GENERATE_CACHE]},
        )
        return two.sequences[0].tolist(), two[GENERATE_CACHE]

    plain, drafted = two_turns(), two_turns(custom_generate=Strategy("prompt_lookup"))
    assert drafted[0] == plain[0]
    for ours, theirs in zip(drafted[1].layers, plain[1].layers, strict=True):
        assert ours.keys.shape == theirs.keys.shape
        assert torch.allclose(ours.keys, theirs.keys, atol=1e-4)


@pytest.mark.parametrize("name", [*LONG, *BOUNDED])
def test_our_forwards_do_not_affect_the_models_own(name: str) -> None:
    model = copy.deepcopy(make(name))
    each = prompts(name, (10, SWITCH + 16))
    expected = known_answers(make(name), each)
    beyond = torch.tensor(prompts("", (SWITCH + 60,)))
    with torch.no_grad():
        model(beyond[:, :5], use_cache=False)
        before = {key: value.clone() for key, value in model.named_buffers()}
        model(beyond, use_cache=False)  # now it has the frequencies of a long text
    llm = LLM(model, "prompt_lookup")
    with torch.no_grad():
        model(beyond, use_cache=False)
    assert [out.token_ids for out in llm.generate(each, PARAMS)] == [*expected.values()]
    with torch.no_grad():
        model(beyond[:, :5], use_cache=False)
    assert all(torch.equal(value, before[key]) for key, value in model.named_buffers())


@pytest.mark.parametrize(("name", "spec"), AS_DRAFTS)
def test_draft_models_with_switching_frequencies(name: str, spec: str) -> None:
    target = make("llama_linear")
    each = prompts(name, (SWITCH - 9, 10, SWITCH + 3))
    llm = LLM(target, spec, draft_model=make(name), max_batch=2)
    for _ in range(2):
        assert [out.token_ids for out in llm.generate(each, PARAMS)] == [
            reference(target, prompt, COUNT) for prompt in each
        ]


def test_draft_model_restarts_at_the_switch() -> None:
    """Check that a model as its own draft model is right except around the switch."""
    model = make("phi3_longrope")
    (prompt,) = prompts("", (SWITCH - 9,))
    llm = LLM(
        model, "draft_model:max_draft_tokens=4,budget=false", draft_model=copy.deepcopy(model)
    )
    (out,) = llm.generate([prompt], SamplingParams(max_new_tokens=60, ignore_eos=True))
    assert out.token_ids == reference(model, prompt, 60)
    assert out.stats.target_forwards < 60 // 5 + 9


@pytest.mark.parametrize("name", BOUNDED)
def test_dynamic_ntk_limits_the_context_to_the_switch(name: str) -> None:
    model = make(name)
    (prompt,) = prompts(name, (SWITCH - COUNT,))
    llm = LLM(model, "none")
    assert llm.model.context_length == SWITCH
    (out,) = llm.generate([prompt], SamplingParams(max_new_tokens=3 * COUNT, ignore_eos=True))
    assert out.token_ids == reference(model, prompt, COUNT)


@pytest.mark.parametrize("name", LONG)
def test_restart_length_follows_generate(name: str) -> None:
    architecture = CachedLM(make(name)).architecture
    assert architecture.switch_lengths == (SWITCH,)
    assert architecture.restart_length == (SWITCH if name in RESTARTING else None)


@pytest.mark.parametrize("name", ["phi3_longrope", "phimoe_longrope", "phi4_multimodal"])
def test_restarting_models_answer_as_whole_forwards(name: str) -> None:
    """Compare with whole forward passes instead of `generate`.

    That of Phi-4-multimodal feeds only the newest token at the switch and loses the text.
    """
    model = models.make(name, "sdpa")
    for prompt in prompts(name, (10, SWITCH - 9, SWITCH - 1, SWITCH, SWITCH + 1)):
        ids = torch.tensor([prompt])
        with torch.no_grad():
            for _ in range(COUNT):
                ids = torch.cat(
                    [ids, model(input_ids=ids, use_cache=False).logits[:, -1:].argmax(-1)], dim=-1
                )
        answer = ids[0, len(prompt) :].tolist()
        llm = LLM(model, ScriptedTree({tuple(prompt): answer}, VOCAB))
        assert llm.generate([prompt], PARAMS)[0].token_ids == answer


def test_drafts_end_at_the_switch_of_restarting_models() -> None:
    tree = DraftTree(
        [5, 6, 7, 8, 9], [-1, 0, -1, 1, 2], confidence=[0.5, 0.4, 0.3, 0.2, 0.1], probes=1
    )
    request = Request([1] * 8, SamplingParams())
    assert cut_at_switch(tree, request, 20) is tree
    assert cut_at_switch(tree, request, 10) == DraftTree(
        [5, 6, 7, 9], [-1, 0, -1, 2], confidence=[0.5, 0.4, 0.3, 0.1], probes=1
    )
    assert cut_at_switch(tree, request, 9) == DraftTree([5, 7], [-1, -1], confidence=[0.5, 0.3])
    assert not len(cut_at_switch(tree, request, 8))
    request.rotary_length = 12
    assert cut_at_switch(tree, request, 8) is tree


def test_mismatched_restart_length_is_refused() -> None:
    model = copy.deepcopy(make("phi3_longrope"))
    model.config.original_max_position_embeddings = 100
    with pytest.raises(
        UnsupportedModelError,
        match="beyond 64 tokens, but its generate recomputes texts beyond 100",
    ):
        LLM(model, "none")


def test_custom_rotary_embedding_is_refused() -> None:
    model = copy.deepcopy(make("llama_longrope"))
    del model.model.rotary_emb.rope_type
    with pytest.raises(UnsupportedModelError, match="rotary embedding of its own"):
        LLM(model, "none")


def test_only_longrope_models_have_a_switch() -> None:
    for name in ROTARY:
        assert (switch_lengths(make(name).config) == ()) == (name not in LONG)
        assert (CachedLM(make(name))._runner.view.state.text_lengths is None) == (
            name not in [*LONG, *BOUNDED]
        )
