"""Test the target states that draft models read: storage, batches and training."""

from __future__ import annotations

import pytest
import torch

from paceline import LLM
from paceline.core.hidden_state_log import HiddenStateLog
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams as Params
from paceline.model.cached_lm import CachedLM
from paceline.training.draft.loss import states_loss
from paceline.training.draft.rows import Rows
from paceline.training.target_states import read_states
from paceline.training.text_chunks import TextChunk
from tests.support.shared import COUNT, Pair


def test_several_texts_are_read_at_once(pair: Pair, answers: list[TextChunk]) -> None:
    target = CachedLM(pair.target)
    alone = list(read_states(target, answers))
    torch.set_num_threads(2)
    try:
        together = read_states(target, answers)
        parallel = [next(together)]
        assert torch.get_num_threads() == 2  # the readers' threads do not change this process's
        parallel += together
        interrupted = read_states(target, answers * 100)
        next(interrupted)
        del interrupted
    finally:
        torch.set_num_threads(1)
    assert [len(states) for states in parallel] == [len(states) for states in answers]
    assert all(
        torch.allclose(states, other, atol=1e-5)
        for states, other in zip(parallel, alone, strict=True)
    )


def test_requests_with_states_of_different_layers_share_a_step(
    pair: Pair, answers: list[TextChunk]
) -> None:
    target = CachedLM(pair.target)
    llm = LLM(pair.target)
    layers = [(0,), (), (1, 0)]
    requests = [Request(prompt, Params(max_new_tokens=COUNT)) for prompt in pair.prompts[:3]]
    for request, read in zip(requests, layers, strict=True):
        request.states = HiddenStateLog(read)
    llm._engine.finish(llm._engine.submit(requests))
    for request, read, chunk in zip(requests, layers, answers, strict=False):
        assert request.states is not None
        first, known = request.states.known(0, len(request))
        expected = next(read_states(target, [chunk], read))
        torch.testing.assert_close(
            known, expected[first - 1 : first - 1 + len(known)], rtol=1e-3, atol=1e-3
        )


def test_training_chains_start_after_the_prompt() -> None:
    for offset in range(4):
        rows = Rows.for_training(20, 4, offset, first=7)
        assert rows.positions[:20].tolist() == list(range(20))
        assert not rows.guessed[:20].any()
        roots = rows.positions[20:] - rows.guessed[20:]
        assert roots.min() >= 6  # guesses start after the prompt
        for position, guessed in zip(
            rows.positions[20:].tolist(), rows.guessed[20:].tolist(), strict=True
        ):
            assert guessed == 1 or (position - 1, guessed - 1) in zip(
                rows.positions.tolist(), rows.guessed.tolist(), strict=True
            )


def test_states_are_stored_by_position() -> None:
    log = HiddenStateLog()
    rows = torch.arange(24.0).view(12, 2)
    assert len(log.known(0, 9)[1]) == 0
    log.write(3, rows[3:5])  # three tokens were in the cache
    log.write(5, rows[5:6])
    first, known = log.known(0, 9)
    assert (first, known.tolist()) == (4, rows[3:6].tolist())
    log.write(0, rows[:8])  # read again from the first token
    assert log.known(2, 7)[1].tolist() == rows[1:6].tolist()
    log.write(6, rows[6:7] + 100)  # and again, after another draft
    assert log.known(7, 9)[1].tolist() == (rows[6:7] + 100).tolist()


def test_states_loss_and_gradient_equal_autograd() -> None:
    torch.manual_seed(0)
    hidden, states = torch.randn(300, 8, requires_grad=True), torch.randn(300, 8)
    weight, bias, shares = torch.randn(20, 8), torch.randn(20), torch.rand(300)
    logits, probs = hidden @ weight.T + bias, (states @ weight.T + bias).softmax(-1)
    expected = -((probs * logits.log_softmax(-1)).sum(-1) * shares).sum()
    loss = states_loss(hidden, states, weight, bias, shares)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(
        *(torch.autograd.grad(2 * value, hidden)[0] for value in (loss, expected)),
        rtol=1e-4,
        atol=1e-4,
    )


def test_forgotten_states_free_their_memory() -> None:
    log = HiddenStateLog()
    rows = torch.arange(400.0).view(200, 2)
    for position in range(0, 200, 5):
        log.write(position, rows[position : position + 5])
        assert log.known(position, 300)[1][-5:].tolist() == rows[position : position + 5].tolist()
        log.forget(position + 4)
    assert len(log._rows) < 40
    first, known = log.known(0, 300)
    assert (first, known.tolist()) == (199, rows[198:].tolist())
    log.forget(500)
    assert log.known(0, 300)[0] == 201
    log.write(2, rows[2:4])  # the text is computed again
    assert log.known(0, 300)[1].tolist() == rows[2:4].tolist()
