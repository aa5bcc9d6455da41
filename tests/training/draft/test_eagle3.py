"""Test the training of EAGLE-3 heads, their files, and drafting with them."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline import LLM, SamplingParams
from paceline.errors import ConfigError, UnsupportedModelError
from paceline.model.cached_lm import CachedLM
from paceline.model.loading import load_draft
from paceline.state_heads.find import find_head
from paceline.state_heads.text import ROOT, HeadNode
from paceline.training.draft.eagle3_student import Eagle3Student, eagle3_layers
from paceline.training.draft.folder import DraftFolder
from paceline.training.draft.prepare import DraftData
from paceline.training.draft.settings import DraftTraining
from paceline.training.draft.train import DraftTrainer
from paceline.training.loop import TrainingReport
from paceline.training.target_states import read_states
from paceline.training.text_chunks import TextChunk
from tests.support.models import make
from tests.support.shared import COUNT, Pair

CONFIG = DraftTraining(
    kind="eagle3", minutes=0.08, batch=256, context=64, held_out=4, validations=2, coverage=0.9
)
CHAIN = 3


def data_of(pair: Pair, answers: list[TextChunk]) -> DraftData:
    return DraftData.split(answers, [], CONFIG).with_states(CachedLM(pair.target), CONFIG)


def trainer_of(pair: Pair, data: DraftData, out: Path) -> DraftTrainer:
    # seconds: every step takes equally long, whatever the machine's load
    ticks = itertools.count(0.0, 0.25)
    folder = DraftFolder(out, {"seed": 0}, {"target": "the pair's"})
    return DraftTrainer(pair.target, data, CONFIG, folder, lambda: next(ticks))


@pytest.fixture(scope="module")
def pair(pair: Pair) -> Pair:
    """Return the pair with a more confident target that makes the same greedy choices."""
    target = copy.deepcopy(pair.target)
    head = target.get_output_embeddings()
    head.weight = torch.nn.Parameter(8 * head.weight.detach())
    return dataclasses.replace(pair, target=target)


@pytest.fixture(scope="module")
def data(pair: Pair, answers: list[TextChunk]) -> DraftData:
    return data_of(pair, answers * 2)


@pytest.fixture(scope="module")
def losses(pair: Pair, data: DraftData, folder: Path) -> tuple[float, float]:
    """Train and return the losses on held-out answers before and after."""
    trainer = trainer_of(pair, data, folder)
    before = trainer._student.loss(data.held_out, 0).item()
    trainer.run()
    return before, trainer._student.loss(data.held_out, 0).item()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("head")


@pytest.fixture(scope="module")
def head(folder: Path, losses: tuple[float, float]) -> Path:
    """Return the folder after training."""
    return folder


def test_training_lowers_the_loss_on_held_out_answers(losses: tuple[float, float]) -> None:
    before, after = losses
    assert after < 0.9 * before


def test_files_have_the_speculators_format(pair: Pair, data: DraftData, head: Path) -> None:
    config = json.loads((head / "config.json").read_text())
    assert config["speculators_model_type"] == "eagle3"
    assert config["speculators_config"]["verifier"]["architectures"] == ["LlamaForCausalLM"]
    assert config["eagle_aux_hidden_state_layer_ids"] == list(eagle3_layers(pair.target))
    tensors = load_file(head / "model.safetensors")
    mask, offsets = tensors["t2d"], tensors["d2t"]
    token_ids = offsets + torch.arange(len(offsets))
    assert torch.equal(mask.nonzero()[:, 0], token_ids)
    assert config["draft_vocab_size"] == len(token_ids) < pair.vocab_size
    answered = np.concatenate([chunk.token_ids[chunk.first :] for chunk in data.answers])
    assert np.isin(answered, token_ids.numpy()).mean() >= CONFIG.coverage
    head_rows = pair.target.get_output_embeddings().weight.detach()[token_ids]
    assert torch.equal(tensors["lm_head.weight"], head_rows.to(torch.bfloat16))
    assert tensors["embed_tokens.weight"].shape == (pair.vocab_size, pair.target.config.hidden_size)


def read_chain(head: Any, text_ids: list[int], states: Tensor, end: int) -> list[int]:
    """Return the head's top tokens along the text after `end` tokens."""
    text = head.open(len(text_ids) + CHAIN)
    text.restart(1)
    head.read([text], [text_ids[1:end]], [states[: end - 1]])
    node, guesses = HeadNode(ROOT, text_ids[end - 1], ()), []
    for step, token in enumerate(text_ids[end : end + CHAIN]):
        guesses.append(int(head.predict([text], [[node]])[0][0, 0]))
        node = HeadNode(step, token, tuple(range(step + 1)))
    head.close(text)
    return guesses


def test_loaded_head_agrees_with_evaluation(
    pair: Pair, answers: list[TextChunk], head: Path
) -> None:
    """Compare the evaluation without decoding with the head in use."""
    reader = find_head(str(head))
    reader.attach(pair.target)
    chunk = answers[0]
    states = next(iter(read_states(CachedLM(pair.target), [chunk], reader.layers)))
    weights = load_file(head / "model.safetensors")
    del weights["embed_tokens.weight"]  # the student uses the target's embedding
    token_ids = weights.pop("t2d").nonzero()[:, 0].numpy()
    chunk = dataclasses.replace(chunk, states=states)
    student = Eagle3Student(pair.target, CONFIG, token_ids, [chunk])
    student.model.load_state_dict(weights, strict=False)
    student._state_scale = torch.ones(())  # the file's weights expect unscaled states
    expected = student._agreement(chunk, CHAIN)
    text_ids = chunk.token_ids.tolist()
    found = np.zeros_like(expected)
    for end in range(chunk.first, len(text_ids)):
        guesses = read_chain(reader, text_ids, states, end)
        for step, guess in enumerate(guesses):
            found[step, end + step - chunk.first] = guess == text_ids[end + step]
    assert np.array_equal(found, expected)
    assert 0.2 < found[0].mean() < 1


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
def test_logits_equal_speculators(pair: Pair, answers: list[TextChunk], head: Path) -> None:
    """Compare every chain position; skipped without the library."""
    library = pytest.importorskip("speculators")
    config = library.SpeculatorModelConfig.from_pretrained(head)
    config.transformer_layer_config._attn_implementation = "eager"
    theirs = library.SpeculatorModel.from_pretrained(head, config=config, dtype=torch.float32)
    found: list[Tensor] = []
    theirs.lm_head.register_forward_hook(lambda module, inputs, logits: found.append(logits[0]))
    reader: Any = find_head(str(head))
    reader.attach(pair.target)
    chunk = answers[0]
    states = next(iter(read_states(CachedLM(pair.target), [chunk], reader.layers)))
    text_ids = torch.from_numpy(chunk.token_ids).long()
    with torch.no_grad():
        theirs.eval()(
            hidden_states=states[None, :-1, 1:].flatten(2),
            input_ids=text_ids[None, 1:],
            document_ids=torch.zeros(1, len(text_ids) - 1, dtype=torch.long),
            ttt_steps=CHAIN,
        )
    for end in range(chunk.first, len(text_ids) - CHAIN):
        text = reader.open(len(text_ids) + CHAIN)
        text.restart(1)
        reader.read([text], [text_ids[1:end].tolist()], [states[: end - 1]])
        node = HeadNode(ROOT, int(text_ids[end - 1]), ())
        for step in range(CHAIN):
            logits = reader.logits([text], [[node]])[0][0]
            torch.testing.assert_close(logits, found[step][end - 2], atol=1e-4, rtol=0)
            node = HeadNode(step, int(text_ids[end + step]), tuple(range(step + 1)))
        reader.close(text)


@pytest.mark.parametrize("spec", ["state_head:head={}", "auto:state_head={}"])
@pytest.mark.parametrize("batch", [1, 4])
def test_answers_equal_plain_decoding(pair: Pair, head: Path, spec: str, batch: int) -> None:
    llm = LLM(pair.target, drafter=spec.format(head) + ",budget=false", max_batch=batch)
    few = slice(0, 2 * batch)
    outs = llm.generate(pair.prompts[few], SamplingParams(max_new_tokens=COUNT))
    assert [out.token_ids for out in outs] == pair.answers[few]
    assert sum(out.stats.accepted_tokens for out in outs) > 0


def test_wrong_vocabulary_map_keeps_answers(pair: Pair, head: Path, tmp_path: Path) -> None:
    tensors = load_file(head / "model.safetensors")
    token_ids = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    tensors["d2t"] = token_ids.flip(0) - torch.arange(len(token_ids))
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((head / "config.json").read_text())
    accepted = []
    for folder in (head, tmp_path):
        llm = LLM(pair.target, drafter=f"state_head:head={folder},budget=false")
        outs = llm.generate(pair.prompts, SamplingParams(max_new_tokens=COUNT))
        assert [out.token_ids for out in outs] == pair.answers
        accepted.append(sum(out.stats.accepted_tokens for out in outs))
    assert accepted[1] < 0.3 * accepted[0]


def test_interrupted_training_resumes(pair: Pair, data: DraftData, tmp_path: Path) -> None:
    def interrupt(text: str) -> None:
        raise KeyboardInterrupt

    first = trainer_of(pair, data, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        first.run(TrainingReport(interrupt))
    second = trainer_of(pair, data, tmp_path)
    assert second.progress == first.progress
    for trainer in (first, second):
        trainer.step()
    weights, others = first.model.state_dict(), second.model.state_dict()
    assert all(torch.equal(weight, others[name]) for name, weight in weights.items())


def test_only_trained_weights_change(pair: Pair, data: DraftData, tmp_path: Path) -> None:
    trainer = trainer_of(pair, data, tmp_path)
    before = {name: weight.clone() for name, weight in trainer.model.state_dict().items()}
    trainer.step()
    same = {
        name
        for name, weight in trainer.model.state_dict().items()
        if torch.equal(weight, before[name])
    }
    assert same == {"embed_tokens.weight", "lm_head.weight"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": 64}, "hidden: got 64 for an EAGLE-3 head"),
        ({"start": "demo"}, "start: got 'demo' for an EAGLE-3 head"),
        ({"kind": "eagle4"}, "kind: got 'eagle4'; expected one of eagle, independent, eagle3"),
    ],
)
def test_unfit_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(CONFIG, **changes)


def test_lm_head_with_a_bias_is_refused(pair: Pair, data: DraftData) -> None:
    target = make("six_words")
    target.lm_head.bias = torch.nn.Parameter(torch.zeros(target.config.vocab_size))
    with pytest.raises(UnsupportedModelError, match="an LM head with a bias"):
        Eagle3Student(target, CONFIG, np.arange(6), data.training)


def test_head_is_refused_as_draft_model(head: Path) -> None:
    with pytest.raises(ConfigError, match=f"a head, not a model. .* state_head:head={head}"):
        load_draft(head)


def test_small_target_has_fewer_layers_to_read(pair: Pair) -> None:
    assert eagle3_layers(pair.target) == (0, 1)
