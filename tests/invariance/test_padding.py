"""Check that padding keeps row counts of forward passes in the proven class."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline import LLM, SamplingParams
from paceline.core.drafter import Drafter
from paceline.core.request import Request
from paceline.core.tree import DraftTree
from paceline.draft_budget.drafts import DrafterState
from paceline.engine.grouping import select_prompts
from paceline.engine.request_handle import RequestHandle
from paceline.invariance import invariance
from paceline.invariance.probe_report import ProbeReport
from paceline.model.cached_lm import CachedLM
from paceline.model.padded_batch import lay_out
from tests.support.models import make

pytestmark = [pytest.mark.processor, pytest.mark.usefixtures("own_cache")]
LENGTHS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(1, 12), st.integers(0, 4)), min_size=1, max_size=4
)


@given(shapes=LENGTHS, chunk=st.integers(1, 12), least=st.integers(1, 40))
def test_padding_reaches_the_class_and_changes_no_result(
    shapes: list[tuple[int, int, int]], chunk: int, least: int
) -> None:
    requests, trees = [], []
    for slot, (cached, pending, nodes) in enumerate(shapes):
        request = Request(list(range(3, 3 + cached + pending)), SamplingParams())
        request.slot, request.cached = slot, cached
        requests.append(request)
        trees.append(
            DraftTree(
                [50 + node for node in range(nodes)], [node // 2 - 1 for node in range(nodes)]
            )
        )
    plain, padded = lay_out(requests, trees, chunk), lay_out(requests, trees, chunk, least)
    rows, columns = padded.token_ids.shape
    assert rows * (1 + padded.width) >= least
    assert rows * columns >= least
    assert rows * padded.width < least or padded.width == plain.width  # and no more than that
    if rows * (1 + plain.width) >= least:
        assert padded.token_ids.shape == plain.token_ids.shape
    own, extra = slice(0, plain.token_ids.shape[1]), slice(plain.token_ids.shape[1], None)
    for name in ("token_ids", "positions", "padding"):
        assert np.array_equal(getattr(padded, name)[:, own], getattr(plain, name))
    assert np.array_equal(padded.block[:, own, own], plain.block)
    assert not padded.block[:, own, extra].any()
    assert padded.padding[:, extra].all()
    root = columns - padded.width - 1
    assert (padded.block[:, extra].sum(-1) == 1).all()
    assert padded.block[:, extra, root].all()
    used = ~padded.padding
    for row in range(rows):
        assert (
            len(set(padded.cache_positions[row].tolist())) == columns
        )  # every column has a place of its own
        assert np.array_equal(
            padded.cache_positions[row][used[row]], plain.cache_positions[row][~plain.padding[row]]
        )


@pytest.mark.parametrize("least", [1, 4, 17])
def test_padded_forward_passes_keep_the_logits(least: int) -> None:
    model = make("llama", "sdpa")
    plain, padded = CachedLM(model), CachedLM(model, min_rows=least)
    trees = [DraftTree([5, 6, 7], [-1, 0, -1]), DraftTree([8], [-1])]
    results = []
    for lm in (plain, padded):
        requests = [Request([3, 4, 5, 6], SamplingParams()), Request([9, 8], SamplingParams())]
        for request in requests:
            lm.open(request)
        alone = lm.feed(requests[:1])
        requests[0].token_ids.append(11)
        logits, hidden = lm.forward_with_hidden(requests, trees)
        lm.commit([[0, 1], []])
        requests[0].append([5, 6, 12])
        requests[1].append([12])
        results.append((alone, logits, hidden, lm.feed(requests)))
    for one, other in zip(*results, strict=True):
        assert one.shape == other.shape
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one[0], other[0], atol=1e-4)
        assert torch.allclose(one[1:, :2], other[1:, :2], atol=1e-4)


def test_no_forward_pass_leaves_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts that share a pass, drafts and single tokens stay in the class."""
    monkeypatch.setattr(invariance, "load_report", lambda *_: ProbeReport(5, 40, 1.0, "", (), 0.1))
    llm = LLM(make("llama", "sdpa"), drafter="lookahead", max_batch=4, batch_invariant=True)
    counted: list[int] = []
    hook = llm.model.model.get_input_embeddings().register_forward_hook(
        lambda module, ids, out: counted.append(ids[0].numel())
    )
    prompts = [[5, 6, 7, 8] * 25, [9, 3] * 6, [4] * 11, [4, 5, 6] * 4, [7]]
    outs = llm.generate(prompts, SamplingParams(max_new_tokens=20, ignore_eos=True))
    hook.remove()
    assert 5 <= min(counted) <= max(counted) <= 40
    assert all(out.stats.batch_invariant for out in outs)
    assert any(out.stats.drafted_tokens for out in outs)


def test_prompts_share_a_forward_pass_within_the_class() -> None:
    handles = []
    for slot in range(4):
        request = Request([3] * 10, SamplingParams())
        request.slot = slot
        handles.append(RequestHandle(request, DrafterState(Drafter(), None)))
    assert len(select_prompts(handles, 512)) == 4
    assert len(select_prompts(handles, 512, 29)) == 2
    assert len(select_prompts(handles, 512, 5)) == 1
