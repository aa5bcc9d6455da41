"""Test how `sssd` caches an engine's answers without a datastore."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from paceline.core.origin import Origin
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.datastore import Snapshot, info
from paceline.drafters.sssd import answer_memory
from paceline.drafters.sssd.answer_memory import AnswerMemory
from paceline.drafters.sssd.drafter import Sssd
from paceline.drafters.sssd.options import SssdOptions
from paceline.errors import ConfigError
from tests.drafters.test_sssd import drafted
from tests.support.stores import looked_up, store

ANSWER = list(range(500, 580))  # longer than the limit for sorting


def finds(kept: AnswerMemory, query: list[int]) -> bool:
    """Return whether the whole of `query` is found."""
    return len(looked_up(Snapshot(Path(), kept.shards), query, 1)) == len(query)


def guesses(drafter: Sssd, text: list[int]) -> list[int]:
    return list(drafted(drafter, text, 4).token_ids)


def origins(drafter: Sssd, text: list[int]) -> set[int]:
    return set(drafted(drafter, text, 4).origins or [])


def run_request(drafter: Sssd, prompt: list[int], answer: list[int]) -> None:
    """Start a request, append its answer and stop it."""
    request = Request(prompt, SamplingParams(max_new_tokens=len(answer) + 1))
    drafter.start(request)
    drafter.propose([request], [4])
    request.append(answer)
    drafter.stop(request)


@pytest.mark.parametrize("datastore", [False, True])
def test_later_requests_find_an_answer(tmp_path: Path, datastore: bool) -> None:
    path = str(store(tmp_path / "store", [[5, 6, 9]], vocab_size=600)) if datastore else None
    drafter = Sssd(SssdOptions(path))
    run_request(drafter, [1, 2, 3], ANSWER)
    assert guesses(drafter, [7, *ANSWER[10:14]]) == ANSWER[14:18]
    assert guesses(drafter, [2, 3, *ANSWER[:2]]) == ANSWER[2:6]  # prompt end and answer are joined
    assert not datastore or guesses(drafter, [8, 5, 6])[:1] == [9]
    assert origins(drafter, [7, *ANSWER[10:14]]) == {Origin.POOL}
    assert not datastore or origins(drafter, [8, 5, 6]) == {Origin.DATASTORE}
    assert (Path(path or tmp_path) / "manifest.json").exists() == datastore
    assert not list(tmp_path.rglob("*live*"))
    assert not datastore or info(Path(str(path))).tokens == 3


@pytest.mark.parametrize(
    "options", [SssdOptions(answer_cache_tokens=0), SssdOptions(fusion="paper")]
)
def test_no_answers_are_cached_when_disabled(options: SssdOptions) -> None:
    drafter = Sssd(options)
    run_request(drafter, [1, 2, 3], ANSWER)
    assert guesses(drafter, [7, *ANSWER[10:14]]) == []


def test_running_requests_draft_from_each_other() -> None:
    drafter = Sssd(SssdOptions())
    one, other = (
        Request(prompt, SamplingParams(max_new_tokens=200)) for prompt in ([1, 2, 3], [4, 5, 6])
    )
    drafter.start(one)
    drafter.propose([one], [4])
    one.append(ANSWER)
    drafter.propose([one], [4])
    assert drafter._memory is not None
    assert not drafter._memory.shards  # a request's own text is in its own index
    drafter.start(other)
    other.append(ANSWER[20:24])
    (_, tree) = drafter.propose([one, other], [4, 4])
    assert tree.token_ids == ANSWER[24:28]
    drafter.stop(one)
    drafter.stop(other)


def test_oldest_answers_are_dropped_with_little_sorting(monkeypatch: pytest.MonkeyPatch) -> None:
    most, sorted_tokens, answer_tokens = 4000, 0, 0
    plain = answer_memory._shard

    def count_sorted(texts: object) -> object:
        nonlocal sorted_tokens
        shards = plain(texts)  # type: ignore[arg-type]
        sorted_tokens += sum(shard.info.tokens for shard in shards)
        return shards

    monkeypatch.setattr(answer_memory, "_shard", count_sorted)
    kept, rng = AnswerMemory(most), random.Random(3)
    answers: list[list[int]] = []
    for _ in range(300):
        answers.append([rng.randrange(10**6) for _ in range(rng.randint(1, 120))])
        kept.append(answers[-1])
        kept.follow({})
        answer_tokens += len(answers[-1])
        held = sum(shard.info.tokens for shard in kept.shards)
        assert held <= 1.5 * most
        recent, behind = 0, max(64, held // 4) + len(answers[-1])
        for answer in reversed(answers):
            recent += len(answer)
            if behind < recent < min(held, most) - 120:
                assert finds(kept, answer[:4])
    assert not finds(kept, answers[0][:4])
    assert sorted_tokens < 14 * answer_tokens


def test_answers_are_found_after_another_is_dropped() -> None:
    kept = AnswerMemory(10_000)
    kept.follow({1: [7] * 2000, 2: ANSWER})
    assert finds(kept, ANSWER[:8])
    kept.unfollow(1)
    kept.unfollow(2)
    kept.append(list(range(900, 970)))
    kept.follow({})
    assert finds(kept, [900, 901, 902])


def test_contradictory_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="update_datastore=true and answer_cache_tokens=8"):
        SssdOptions(str(tmp_path), answer_cache_tokens=8, update_datastore=True)
    with pytest.raises(ConfigError, match="answer_cache_tokens"):
        SssdOptions(answer_cache_tokens=-1)
