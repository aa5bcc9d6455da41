"""Test draft models that read target states: training, evaluation and use."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from paceline import LLM, SamplingParams
from paceline.bench import enlarge
from paceline.core.hidden_state_log import HiddenStateLog
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams as Params
from paceline.core.tree import DraftTree
from paceline.errors import ConfigError, UnsupportedModelError
from paceline.model.cached_lm import CachedLM
from paceline.model.eagle.modules import (
    READS,
    attach,
    layers_read,
    states_shape,
    uses_target_states,
)
from paceline.model.forward_state import TargetStates
from paceline.model.loading import load_draft
from paceline.training.acceptance_head.along import chains_along
from paceline.training.acceptance_head.teacher_forcing import AnsweredPrompts
from paceline.training.draft.evaluate import evaluate
from paceline.training.draft.folder import STATE, DraftFolder
from paceline.training.draft.prepare import DraftData
from paceline.training.draft.rows import Rows, hidden_of_rows
from paceline.training.draft.settings import DraftTraining
from paceline.training.draft.start import load_start, shaped_as_start
from paceline.training.draft.train import DraftTrainer
from paceline.training.target_states import read_states
from paceline.training.text_chunks import TextChunk
from tests.support.models import with_new_weights
from tests.support.shared import COUNT, Pair, reference

CONFIG = DraftTraining(
    hidden=64, layers=2, minutes=0.1, batch=256, context=64, held_out=4, validations=2, coverage=1.0
)
SPECS = [
    "draft_model:max_draft_tokens=4",
    "draft_model",
    "ouroboros:gamma=4",
    "auto:use_draft_model=true",
    "draft_model:stop_rule=heuristic,max_draft_tokens=3",
]


def trained(
    pair: Pair, answers: list[TextChunk], out: Path, config: DraftTraining = CONFIG
) -> DraftTrainer:
    folder = DraftFolder(out, {"seed": 0}, {"target": "the pair's"})
    # seconds: every step takes equally long, whatever the machine's load
    ticks = itertools.count(0.0, 0.25)
    data = DraftData.split(answers, [], config).with_states(CachedLM(pair.target), config)
    trainer = DraftTrainer(pair.target, data, config, folder, lambda: next(ticks))
    trainer.run()
    return trainer


@pytest.fixture(scope="module")
def folder(pair: Pair, answers: list[TextChunk], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a draft model on the answers that the tests generate."""
    path = tmp_path_factory.mktemp("draft")
    trained(pair, [*answers * 2], path)
    return path


def test_training_lowers_the_loss_and_continues(
    pair: Pair, answers: list[TextChunk], folder: Path
) -> None:
    record = DraftFolder(folder, {"seed": 0}, {"target": "the pair's"}).record()
    assert record.curve[-1].losses["answers"] < record.curve[0].losses["answers"]
    assert (folder / STATE).exists()
    data = DraftData.split(answers * 2, [], CONFIG).with_states(CachedLM(pair.target), CONFIG)
    again = DraftTrainer(
        pair.target, data, CONFIG, DraftFolder(folder, {"seed": 0}, {"target": "the pair's"})
    )
    assert again.progress.steps == record.curve[-1].steps


def test_draft_starts_from_another_draft(
    pair: Pair, answers: list[TextChunk], folder: Path, tmp_path: Path
) -> None:
    config = dataclasses.replace(CONFIG, hidden=0, coverage=0.9, start=str(folder))
    config = shaped_as_start(config)
    assert (config.hidden, config.layers) == (CONFIG.hidden, CONFIG.layers)
    data = DraftData.split(answers, [], config).with_states(CachedLM(pair.target), config)
    trainer = DraftTrainer(
        pair.target, data, config, DraftFolder(tmp_path, {}, {"target": "the pair's"})
    )
    start_weights = dict(load_draft(folder, "float32").named_parameters())
    assert all(
        torch.equal(weight, start_weights[name])
        for name, weight in trainer.model.named_parameters()
    )


def test_draft_that_reads_no_middle_layer(
    pair: Pair, answers: list[TextChunk], folder: Path, tmp_path: Path
) -> None:
    """Check also that older configurations, which name no layer, load without one."""
    path = tmp_path / "draft"
    trained(pair, answers, path, dataclasses.replace(CONFIG, reads_at=0))
    config = json.loads((path / "config.json").read_text())
    assert config[READS].pop("layers") == []
    del config[READS]["depth"]
    (path / "config.json").write_text(json.dumps(config))
    draft = load_draft(path, "float32")
    assert layers_read(draft) == ()
    assert shaped_as_start(dataclasses.replace(CONFIG, start=str(path))).reads_at == 0
    assert (
        shaped_as_start(dataclasses.replace(CONFIG, start=str(folder))).reads_at == 0.5
    )  # the second of two layers
    llm = LLM(pair.target, "draft_model:max_draft_tokens=4", draft)
    outs = llm.generate(pair.prompts, SamplingParams(max_new_tokens=COUNT))
    assert [out.token_ids for out in outs] == pair.answers
    assert sum(out.stats.accepted_tokens for out in outs) > 0


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"hidden": 96}, "hidden: got 96; expected 64"),
        ({"kind": "independent"}, "start: got .* reads the target's states; exp"),
    ],
)
def test_start_of_another_shape_or_kind_is_refused(
    folder: Path, other: dict[str, Any], what: str
) -> None:
    with pytest.raises(ConfigError, match=what):
        shaped_as_start(dataclasses.replace(CONFIG, start=str(folder), **other))


def test_start_for_another_size_of_states_is_refused(pair: Pair, folder: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"start: got .*, whose .* is .*; expected .*, as drafts for this target have",
    ):
        load_start(pair.draft, str(folder))


@pytest.mark.parametrize("spec", SPECS)
def test_answers_are_lossless_with_every_drafter(pair: Pair, folder: Path, spec: str) -> None:
    llm = LLM(pair.target, spec, folder)
    alone = [
        llm.generate([prompt], SamplingParams(max_new_tokens=COUNT))[0]
        for prompt in pair.prompts[:4]
    ]
    assert [out.token_ids for out in alone] == pair.answers[:4]
    together = llm.generate(pair.prompts, SamplingParams(max_new_tokens=COUNT))
    assert [out.token_ids for out in together] == pair.answers
    assert sum(out.stats.accepted_tokens for out in together) > 0


@pytest.mark.parametrize(
    "spec",
    [
        "draft_model:verification=follow",
        "draft_model:max_draft_tokens=3,verification=follow",
        "ouroboros",
        "auto",
    ],
)
def test_seeded_text_equals_plain_decoding(pair: Pair, folder: Path, spec: str) -> None:
    params = SamplingParams(max_new_tokens=COUNT, temperature=0.8, seed=3)
    plain = LLM(pair.target).generate(pair.prompts[:3], params)
    drafted = LLM(pair.target, spec, folder).generate(pair.prompts[:3], params)
    assert [out.token_ids for out in drafted] == [out.token_ids for out in plain]


def test_chunked_prefill_and_cached_prefixes_are_read(pair: Pair, folder: Path) -> None:
    llm = LLM(pair.target, "draft_model:max_draft_tokens=4", folder, keep_prefixes=2)
    llm._engine.model.prefill_chunk = 5
    for _ in range(2):  # the second time, prompts are cached and their states are unknown
        outs = llm.generate(pair.prompts, SamplingParams(max_new_tokens=COUNT))
        assert [out.token_ids for out in outs] == pair.answers


def test_evaluation_agrees_with_decoding(
    pair: Pair, answers: list[TextChunk], folder: Path
) -> None:
    # in bfloat16, near ties depend on the batch
    draft = load_draft(folder, "float32")
    outs = LLM(pair.target, "draft_model:max_draft_tokens=4", draft).generate(
        pair.prompts, SamplingParams(max_new_tokens=COUNT)
    )
    # the last token is never drafted
    drafted = [dataclasses.replace(answer, token_ids=answer.token_ids[:-1]) for answer in answers]
    chains = evaluate(CachedLM(draft), CachedLM(pair.target), drafted, 4).chains["all"]
    assert chains.per_chain > 0.2
    assert sum(chains.accepted) == pytest.approx(
        sum(out.stats.accepted_tokens for out in outs), rel=0.02
    )


def test_chain_positions_see_what_a_draft_sees(pair: Pair, folder: Path) -> None:
    draft = load_draft(folder, "float32")
    attach(draft, pair.target)
    tokens, states = torch.arange(9), torch.randn(9, *states_shape(draft))
    rows = Rows.for_evaluation(9, 3, 2)
    embedding, decoder = draft.get_input_embeddings(), draft.get_decoder()
    hidden = hidden_of_rows(embedding, decoder, tokens[None], states[None], rows)[0]
    for row, (position, guessed) in enumerate(
        zip(rows.positions.tolist(), rows.guessed.tolist(), strict=True)
    ):
        root = position - guessed
        at = torch.stack((torch.zeros(root, dtype=torch.long), torch.arange(1, root + 1)))
        with torch.no_grad():
            rows_in = embedding(
                tokens[None, : position + 1], TargetStates(at, states[1 : root + 1])
            )
            alone = decoder(inputs_embeds=rows_in).last_hidden_state[0, -1]
        torch.testing.assert_close(hidden[row].detach(), alone, rtol=1e-3, atol=1e-3)


def test_logits_depend_on_the_states(pair: Pair, folder: Path) -> None:
    draft = CachedLM(load_draft(folder, "float32"))
    attach(draft.model, pair.target)
    logits = []
    for log in (None, HiddenStateLog(layers_read(draft.model))):
        request = Request(list(range(5, 12)), Params())
        request.states = log
        if log is not None:
            log.write(
                0,
                torch.randn(
                    6, *states_shape(draft.model), generator=torch.Generator().manual_seed(0)
                ),
            )
        draft.open(request)
        logits.append(draft.forward([request], [DraftTree.chain([3, 4])]))
        draft.close(request)
    assert not torch.allclose(logits[0], logits[1])


def test_other_targets_are_refused(pair: Pair, folder: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"reads the hidden states of .*expected one that was trained"
    ):
        LLM(with_new_weights(pair.target), "draft_model", folder)


def test_draft_works_with_copies_of_its_target(pair: Pair, folder: Path) -> None:
    """Check a noisy copy, which stands for a quantised or fine-tuned target."""
    out = LLM(pair.draft, "draft_model", folder).generate([pair.prompts[0]], SamplingParams(COUNT))[
        0
    ]
    assert out.token_ids == reference(pair.draft, pair.prompts[0], COUNT)


def test_target_without_plain_lm_head_is_refused(
    pair: Pair, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = load_draft(folder)
    assert uses_target_states(draft)
    monkeypatch.setattr(
        type(pair.target), "get_output_embeddings", lambda self: torch.nn.Identity()
    )
    with pytest.raises(UnsupportedModelError, match="not a plain weight"):
        attach(draft, pair.target)


@pytest.mark.parametrize("name", ["model.safetensors", "kept_tokens.json"])
def test_damaged_folder_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    for path in folder.iterdir():
        if path.name != STATE:
            (tmp_path / path.name).write_bytes(
                path.read_bytes()[: None if path.name != name else 100]
            )
    with pytest.raises(ConfigError, match=r"damaged file|cannot be loaded"):
        load_draft(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_draft(tmp_path)


def test_folder_loads_in_another_dtype(pair: Pair, folder: Path) -> None:
    draft: PreTrainedModel = load_draft(folder, torch.float32)
    assert draft.dtype == torch.float32
    attach(draft, pair.target)
    head: Any = draft.get_output_embeddings()
    assert head.kept.dtype == torch.float32


def test_recorded_chains_equal_drafting_token_by_token(
    pair: Pair, answers: list[TextChunk], folder: Path
) -> None:
    draft, target = load_draft(folder, "float32"), CachedLM(pair.target)
    prompt, answer = pair.prompts[0], pair.answers[0]
    answered = AnsweredPrompts([prompt], [answer], SamplingParams())
    columns = chains_along(pair.target, draft, answered, 3, torch.Generator())
    states = next(read_states(target, answers[:1], layers_read(draft)))
    model = CachedLM(draft)
    row = 0
    for guessed in range(1, 4):
        for position in range(len(prompt) + guessed, len(prompt) + len(answer)):
            root = position - guessed
            request = Request([*prompt, *answer][: root + 1], Params())
            request.states = HiddenStateLog(layers_read(draft))
            request.states.write(0, states[:root])
            model.open(request)
            chain = [*prompt, *answer][root + 1 : position]
            logits = model.forward([request], [DraftTree.chain(chain)])[0, -1]
            token = int(logits.argmax())
            hidden = model.forward_with_hidden([request], [DraftTree.chain([*chain, token])])[1][
                0, -1
            ]
            model.close(request)
            torch.testing.assert_close(columns["hidden"][row], hidden, rtol=1e-3, atol=1e-3)
            assert bool(columns["labels"][row]) == (token == [*prompt, *answer][position])
            row += 1
    assert row == len(columns["labels"])


def test_enlarged_target_gives_the_same_drafts(pair: Pair, folder: Path) -> None:
    """Check a target whose states are the same numbers followed by zeros."""
    prompts, params = pair.prompts[:3], SamplingParams(max_new_tokens=COUNT)
    outs = [
        LLM(target, "draft_model:max_draft_tokens=4", folder).generate(prompts, params)
        for target in (pair.target, enlarge(pair.target, 4 * pair.target.config.hidden_size, 6))
    ]
    assert [out.token_ids for out in outs[0]] == [out.token_ids for out in outs[1]]
    assert [out.stats.accepted_tokens for out in outs[0]] == [
        out.stats.accepted_tokens for out in outs[1]
    ]


def test_ouroboros_keeps_the_targets_states(
    pair: Pair, answers: list[TextChunk], folder: Path
) -> None:
    """Check the request's states although Ouroboros also decodes with the draft model."""
    llm = LLM(pair.target, "ouroboros:gamma=4,budget=false", folder)
    request = Request(pair.prompts[0], Params(max_new_tokens=COUNT))
    (handle,) = llm._engine.submit([request])
    llm._engine.finish([handle])
    assert request.states is not None
    first, known = request.states.known(0, len(request))
    expected = next(read_states(CachedLM(pair.target), answers[:1], request.states.layers))
    torch.testing.assert_close(
        known, expected[first - 1 : first - 1 + len(known)], rtol=1e-3, atol=1e-3
    )


def test_draft_of_a_similar_model_warns(pair: Pair, folder: Path) -> None:
    """Check also that it still drafts."""
    similar = copy.deepcopy(pair.target)
    weight = similar.get_input_embeddings().weight.data
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    weight += 0.45 * weight.std() * noise
    with pytest.warns(UserWarning, match=r"a cosine similarity of only 0\.9\d to that model's"):
        llm = LLM(similar, "draft_model:max_draft_tokens=3", folder)
    params = SamplingParams(max_new_tokens=12)
    plain = LLM(similar, "none").generate(pair.prompts[:2], params)
    drafted = llm.generate(pair.prompts[:2], params)
    assert [out.token_ids for out in drafted] == [out.token_ids for out in plain]
