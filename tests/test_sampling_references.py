"""Compare options of single requests with transformers and with their definitions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from paceline import DraftTree, SamplingParams
from paceline.core.request import Request
from paceline.sampling import logit_adjustments
from tests.support.shared import COUNT, Pair
from tests.test_sampling_options import LENGTH


class RecentTokensPenalty(LogitsProcessor):  # type: ignore[misc]
    """Processor in the interface of transformers, which reads the whole text."""

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        return scores.index_add(1, ids[0, -4:], torch.full((1, min(4, ids.shape[1])), -2.5))


@pytest.mark.parametrize("spec", ["none", "prompt_lookup:budget=false", "draft_model"])
def test_options_equal_those_of_transformers(pair: Pair, spec: str) -> None:
    """Combine five options with a penalty, and compare logprobs with scores."""
    llm = pair.engine(spec)
    llm.eos_token_ids = [pair.answers[0][5], pair.answers[3][4]]
    for prompt, answer in zip(pair.prompts, pair.answers, strict=True):
        words = [answer[2:4], [answer[0]]]
        bias = {answer[1]: -2.0, answer[6]: 1.0}
        ids = torch.tensor([prompt])
        theirs = pair.target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=LENGTH,
            do_sample=False,
            eos_token_id=llm.eos_token_ids,
            min_new_tokens=7,
            bad_words_ids=words,
            sequence_bias=[[[token], value] for token, value in bias.items()],
            repetition_penalty=1.2,
            logits_processor=LogitsProcessorList([RecentTokensPenalty()]),
            output_logits=True,
            return_dict_in_generate=True,
            pad_token_id=0,
        )
        params = SamplingParams(
            LENGTH,
            repetition_penalty=1.2,
            min_tokens=7,
            bad_words=words,
            logit_bias=bias,
            logits_processors=[RecentTokensPenalty()],
            logprobs=4,
        )
        (out,) = llm.generate([prompt], params)
        assert out.token_ids == theirs.sequences[0, len(prompt) :].tolist()
        for token, mine, logits in zip(
            out.token_ids, out.logprobs or (), theirs.logits, strict=True
        ):
            every = logits[0].log_softmax(-1)
            assert list(mine)[:4] == every.topk(4).indices.tolist()
            assert set(list(mine)[4:]) <= {token}
            assert token in mine
            assert list(mine.values()) == pytest.approx(
                [float(every[one]) for one in mine], abs=1e-4
            )


def test_log_probabilities_are_the_scores_of_transformers(pair: Pair) -> None:
    """Without options, logprobs equal the scores, also in each chunk."""
    ids = torch.tensor(pair.prompts[:1])
    theirs = pair.target.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=COUNT,
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
    )
    chunks = list(
        pair.engine("draft_model").stream(pair.prompts[0], SamplingParams(COUNT, logprobs=2))
    )
    joined = [one for chunk in chunks for one in chunk.logprobs or ()]
    assert [len(chunk.logprobs or ()) for chunk in chunks] == [
        len(chunk.token_ids) for chunk in chunks
    ]
    assert chunks[-1].completion is not None
    assert chunks[-1].completion.logprobs == joined
    for mine, token, scores in zip(joined, pair.answers[0], theirs.scores, strict=True):
        assert mine[token] == pytest.approx(float(scores[0].log_softmax(-1)[token]), abs=1e-4)
        assert len(mine) == 2  # the greedy token is one of the two most likely


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_penalties_match_their_definition(pair: Pair, temperature: float) -> None:
    """Presence and frequency penalties apply to the output only, not to the prompt."""
    request = Request(
        [1, 2, 3],
        SamplingParams(temperature=temperature, presence_penalty=0.5, frequency_penalty=-1.5),
    )
    request.append([2, 7, 7])
    logits = torch.randn(1, 4, 12, generator=torch.Generator().manual_seed(1))
    scores = logit_adjustments.adjust_scores(
        logits, [request], [DraftTree([7, 4, 4], [-1, 0, -1])]
    )[0]
    for row, path in enumerate([[], [7], [7, 4], [4]]):
        answer = [2, 7, 7, *path]
        expected = [
            float(logits[0, row, t]) + 1.5 * answer.count(t) - 0.5 * (t in answer)
            for t in range(12)
        ]
        assert scores[row].tolist() == pytest.approx(expected, abs=1e-5)
