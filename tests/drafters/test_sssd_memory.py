"""What `sssd` remembers of the answers of an engine, without a datastore."""

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

SAID = list(range(500, 580))  # more than is worth sorting


def found(kept: AnswerMemory, query: list[int]) -> bool:
    """Whether the whole of `query` can be found."""
    return len(looked_up(Snapshot(Path(), kept.shards), query, 1)) == len(query)


def guesses(drafter: Sssd, text: list[int]) -> list[int]:
    return list(drafted(drafter, text, 4).token_ids)


def origins(drafter: Sssd, text: list[int]) -> set[int]:
    return set(drafted(drafter, text, 4).origins or [])


def answered(drafter: Sssd, prompt: list[int], answer: list[int]) -> None:
    """Let the drafter see one request from its beginning to its end."""
    request = Request(prompt, SamplingParams(max_new_tokens=len(answer) + 1))
    drafter.start(request)
    drafter.propose([request], [4])
    request.append(answer)
    drafter.stop(request)


@pytest.mark.parametrize("datastore", [False, True])
def test_an_answer_is_found_by_later_requests(tmp_path: Path, datastore: bool) -> None:
    path = str(store(tmp_path / "store", [[5, 6, 9]], vocab_size=600)) if datastore else None
    drafter = Sssd(SssdOptions(path))
    answered(drafter, [1, 2, 3], SAID)
    assert guesses(drafter, [7, *SAID[10:14]]) == SAID[14:18]
    assert guesses(drafter, [2, 3, *SAID[:2]]) == SAID[2:6]  # joined to the end of its prompt
    assert not datastore or guesses(drafter, [8, 5, 6])[:1] == [9]
    assert origins(drafter, [7, *SAID[10:14]]) == {Origin.POOL}
    assert not datastore or origins(drafter, [8, 5, 6]) == {Origin.DATASTORE}
    assert (Path(path or tmp_path) / "manifest.json").exists() == datastore
    assert not list(tmp_path.rglob("*live*"))
    assert not datastore or info(Path(str(path))).tokens == 3


@pytest.mark.parametrize(
    "options", [SssdOptions(answer_cache_tokens=0), SssdOptions(fusion="paper")]
)
def test_nothing_is_remembered_where_nothing_is_to_be(options: SssdOptions) -> None:
    drafter = Sssd(options)
    answered(drafter, [1, 2, 3], SAID)
    assert guesses(drafter, [7, *SAID[10:14]]) == []


def test_requests_that_go_on_know_of_each_other_and_alone_of_nothing_new() -> None:
    drafter = Sssd(SssdOptions())
    one, other = (
        Request(prompt, SamplingParams(max_new_tokens=200)) for prompt in ([1, 2, 3], [4, 5, 6])
    )
    drafter.start(one)
    drafter.propose([one], [4])
    one.append(SAID)
    drafter.propose([one], [4])
    assert drafter._memory is not None
    assert not drafter._memory.shards  # its own text is in its own index
    drafter.start(other)
    other.append(SAID[20:24])
    (_, tree) = drafter.propose([one, other], [4, 4])
    assert tree.token_ids == SAID[24:28]
    drafter.stop(one)
    drafter.stop(other)


def test_the_oldest_make_room_and_little_is_sorted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    most, sorted_tokens, said = 4000, 0, 0
    plain = answer_memory._shard

    def counted(texts: object) -> object:
        nonlocal sorted_tokens
        shards = plain(texts)  # type: ignore[arg-type]
        sorted_tokens += sum(shard.info.tokens for shard in shards)
        return shards

    monkeypatch.setattr(answer_memory, "_shard", counted)
    kept, rng = AnswerMemory(most), random.Random(3)
    answers: list[list[int]] = []
    for _ in range(300):
        answers.append([rng.randrange(10**6) for _ in range(rng.randint(1, 120))])
        kept.append(answers[-1])
        kept.follow({})
        said += len(answers[-1])
        held = sum(shard.info.tokens for shard in kept.shards)
        assert held <= 1.5 * most
        recent, behind = 0, max(64, held // 4) + len(answers[-1])
        for answer in reversed(answers):
            recent += len(answer)
            if behind < recent < min(held, most) - 120:
                assert found(kept, answer[:4])
    assert not found(kept, answers[0][:4])
    assert sorted_tokens < 14 * said


def test_an_answer_that_is_dropped_does_not_keep_others_from_being_found() -> None:
    kept = AnswerMemory(10_000)
    kept.follow({1: [7] * 2000, 2: SAID})
    assert found(kept, SAID[:8])
    kept.unfollow(1)
    kept.unfollow(2)
    kept.append(list(range(900, 970)))
    kept.follow({})
    assert found(kept, [900, 901, 902])


def test_options_that_contradict_one_another(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="update_datastore=true and answer_cache_tokens=8"):
        SssdOptions(str(tmp_path), answer_cache_tokens=8, update_datastore=True)
    with pytest.raises(ConfigError, match="answer_cache_tokens"):
        SssdOptions(answer_cache_tokens=-1)
