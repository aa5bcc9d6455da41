"""Test Jacobi decoding.

It must equal Algorithm 2 of Fu et al. 2024 and, in blocks, the Gauss-Seidel-Jacobi iteration of
Song et al. 2021.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import LLM, DraftTree, Outcome, SamplingParams
from paceline.core.request import Request
from paceline.drafters.contract import leftovers
from paceline.drafters.jacobi import Jacobi
from paceline.drafters.shared.file_options import JacobiOptions
from paceline.errors import ConfigError
from paceline.verification.rules import follow
from tests.support.models import make
from tests.support.shared import COUNT, RAGGED, Pair, check_aborts, reference

Target = Callable[[Sequence[int]], int]  # maps prompt and answer so far to the next token
BLOCKS = [None, 1, 4]


def jacobi(block: int | None = None) -> Jacobi:
    return Jacobi.build(JacobiOptions(block))


def verify_tree(request: Request, tree: DraftTree, target: Target) -> Outcome:
    """Verify a tree by `target` and append the emitted tokens, as an engine step does."""
    prefixes = [request.token_ids]
    for token, parent in zip(tree.token_ids, tree.parents, strict=True):
        prefixes.append([*prefixes[parent + 1], token])
    predicted = [target(prefix) for prefix in prefixes]
    accepted, run = follow(tree, lambda node: predicted[node + 1], request.end_reason)
    request.append(run)
    return Outcome(request, tree, accepted, run, predicted)


def decode(
    drafter: Jacobi, request: Request, target: Target, limits: Sequence[int] = (99,)
) -> list[tuple[list[int], list[int]]]:
    """Decode one request; return the guesses fed and the tokens emitted by each step.

    The last of `limits` applies to all later steps.
    """
    steps: list[tuple[list[int], list[int]]] = []
    drafter.start(request)
    while request.finish_reason is None:
        (tree,) = drafter.propose([request], [limits[min(len(steps), len(limits) - 1)]])
        assert tree.is_chain()
        assert tree.probs is None
        outcome = verify_tree(request, tree, target)
        drafter.observe([outcome])
        steps.append((tree.token_ids, outcome.new_token_ids))
    drafter.stop(request)
    return steps


# The token at each position of the answer, by the token before it. The prompt is 7, so every
# random guess is 7; the answer is 1 2 3 4 5 6 7.
TABLE = [
    {7: 1},
    {1: 2, 7: 9},
    {2: 3, 7: 3, 9: 3},
    {3: 4, 7: 8},
    {4: 5, 7: 5, 8: 9},
    {5: 6, 7: 6, 9: 0},
    {6: 7, 7: 8},
]


def by_table(prefix: Sequence[int]) -> int:
    return TABLE[len(prefix) - 1][prefix[-1]]


def prompt_of_sevens(count: int) -> Request:
    return Request([7], SamplingParams(max_new_tokens=count))


def test_algorithm_2_by_hand() -> None:
    """Check y of each iteration, without its final tokens and y_6, which no equation reads."""
    assert decode(jacobi(), prompt_of_sevens(6), by_table) == [
        ([7, 7, 7, 7, 7], [1]),  # y = 1 9 3 8 5 6
        ([9, 3, 8, 5], [2]),  # y = 1 2 3 4 9 6: the tokens before are wrong, yet 3 and 4 are right
        (
            [3, 4, 9],
            [3, 4, 5],
        ),  # y = 1 2 3 4 5 0: two guesses right, and the token that replaces the wrong one
        ([], [6]),
    ]


def test_gauss_seidel_jacobi_by_hand() -> None:
    """Check that no guess or bonus token crosses the borders of blocks 1 2 3, 4 5 6 and 7."""
    assert decode(jacobi(3), prompt_of_sevens(7), by_table) == [
        ([7, 7], [1]),  # 1 9 3
        ([9], [2]),  # 1 2 3
        ([], [3]),
        ([7, 7], [4]),  # 4 5 6: a new block, new guesses
        ([5], [5, 6]),  # all guesses right: the bonus is the last token of the block
        ([], [7]),  # the answer ends before the block does
    ]


def test_a_budget_hides_the_tail() -> None:
    """Check that guesses beyond the budget stay as they are.

    Positions that enter the budget get new guesses, and a step without nodes loses nothing.
    """
    assert decode(jacobi(), prompt_of_sevens(6), by_table, limits=[2, 0, 4]) == [
        ([7, 7], [1]),  # 1 9 3
        ([], [2]),  # 1 2, and the guess 3 after it
        ([3, 7, 7], [3, 4]),  # 3 4 5 6
        ([5], [5, 6]),
    ]


def test_a_smaller_budget_keeps_better_guesses() -> None:
    """Check that results of an earlier, longer chain stay until their position is fed again."""
    assert decode(jacobi(), prompt_of_sevens(6), by_table, limits=[5, 1, 3])[:3] == [
        ([7, 7, 7, 7, 7], [1]),  # 1 9 3 8 5 6
        ([9], [2]),  # 2 3, then 8 5 6 as before
        ([3, 8, 5], [3, 4]),
    ]


def test_engine_feeds_a_shorter_tree() -> None:
    drafter, request = jacobi(), prompt_of_sevens(6)
    drafter.start(request)
    assert drafter.propose([request], [9])[0].token_ids == [7, 7, 7, 7, 7]
    drafter.observe([verify_tree(request, DraftTree.chain([7, 7]), by_table)])
    assert drafter.propose([request], [9])[0].token_ids == [9, 3, 7, 7]


def test_guesses_are_one_branch_of_a_merged_tree() -> None:
    """Check that guesses keep their positions if another branch is accepted."""
    drafter, request = jacobi(), prompt_of_sevens(6)
    drafter.start(request)
    drafter.propose([request], [9])
    outcome = verify_tree(request, DraftTree([1, 7, 7, 7, 7], [-1, -1, 1, 2, 3]), by_table)
    assert outcome.new_token_ids == [1, 2]
    drafter.observe([outcome])
    assert drafter.propose([request], [9])[0].token_ids == [3, 8, 5]  # of 1 9 3 8 5


def test_engine_feeds_a_tree_without_the_guesses() -> None:
    drafter, request = jacobi(), prompt_of_sevens(6)
    drafter.start(request)
    drafter.propose([request], [9])
    drafter.observe([verify_tree(request, DraftTree([1, 2, 3, 4], [-1, 0, 1, 2]), by_table)])
    assert request.output_ids == [1, 2, 3, 4, 5]
    assert drafter.propose([request], [9])[0].token_ids == []


def first_guesses(prompt: list[int], seed: int, *neighbours: int) -> list[int]:
    drafter = jacobi()
    requests = [
        Request(prompt, SamplingParams(max_new_tokens=20, seed=one)) for one in (*neighbours, seed)
    ]
    for request in requests:
        drafter.start(request)
    return drafter.propose(requests, [50] * len(requests))[-1].token_ids


def test_seed_draws_initial_guesses_from_the_prompt() -> None:
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    before = random.getstate()
    guesses = first_guesses(prompt, 11)
    assert random.getstate() == before
    source = random.Random(11)
    assert guesses == [source.choice(prompt) for _ in range(19)]
    assert guesses == first_guesses(prompt, 11, 4, 11, 5)
    assert guesses != first_guesses(prompt, 12)


def solve(
    target: Target, prompt: list[int], guesses: list[int]
) -> tuple[list[int], list[list[int]]]:
    """Run Algorithm 2 as printed, with a variable per guess; return answer and guesses.

    Guesses are listed per iteration, from the first that is not final to the last but one.
    """
    y, final, guesses_fed = guesses, 0, []
    while final < len(y):
        guesses_fed.append(y[final:-1])
        new = [target([*prompt, *y[:place]]) for place in range(len(y))]
        while final < len(y) and y[final] == new[final]:
            final += 1
        final, y = min(final + 1, len(y)), new
    return y, guesses_fed


@given(st.integers(0, 10**6), st.integers(1, 14), st.sampled_from([None, 1, 2, 3, 5, 14, 20]))
def test_equals_the_printed_algorithm(seed: int, count: int, block: int | None) -> None:
    """Compare block by block, for random targets that depend on the last two tokens.

    Each forward pass emits at least one token.
    """
    chance = random.Random(seed)
    table = {(a, b): chance.randrange(3) for a in range(3) for b in range(3)}
    prompt = [chance.randrange(3) for _ in range(4)]

    def target(prefix: Sequence[int]) -> int:
        return table[prefix[-2], prefix[-1]]

    steps = decode(
        jacobi(block), Request(prompt, SamplingParams(max_new_tokens=count, seed=seed)), target
    )
    assert len(steps) <= count

    source = random.Random(seed)
    answer: list[int] = []
    guesses_fed: list[list[int]] = []
    while len(answer) < count:
        size = count - len(answer) if block is None else min(block, count - len(answer))
        start = [source.choice(prompt) for _ in range(size - 1)]
        # no equation reads the last variable
        solved, iterations = solve(target, prompt + answer, [*start, -1])
        assert len(iterations) <= size
        answer += solved
        guesses_fed += iterations
    assert [token for _, run in steps for token in run] == answer
    assert [guesses for guesses, _ in steps] == guesses_fed
    if block == 1:
        assert len(steps) == count


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("block", BLOCKS)
def test_greedy_equals_generate(pair: Pair, block: int | None, batch: int) -> None:
    drafter = jacobi(block)
    llm = LLM(pair.target, drafter=drafter, max_batch=batch)
    before = Request([1], SamplingParams()).id
    lengths = [random.Random(place).randrange(1, COUNT + 1) for place in range(len(pair.prompts))]
    outs = llm.generate(pair.prompts, [SamplingParams(max_new_tokens=length) for length in lengths])
    assert [out.token_ids for out in outs] == [
        answer[:length] for answer, length in zip(pair.answers, lengths, strict=True)
    ]
    for out in outs:
        assert out.stats.target_forwards <= len(out.token_ids)
        assert len(out.token_ids) == out.stats.target_forwards + out.stats.accepted_tokens
    assert (sum(out.stats.accepted_tokens for out in outs) > 0) == (block != 1)
    assert leftovers(drafter, range(before, before + 20)) == []


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("name", ["gpt2", "mistral", "bloom"])
def test_greedy_equals_generate_on_other_models(name: str, block: int | None) -> None:
    prompts = [[5, 9, 5, 9, 31], [44], [7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]]
    llm = LLM(make(name), drafter=jacobi(block), max_batch=3, max_nodes=12)
    outs = llm.generate(prompts, SamplingParams(max_new_tokens=24))
    assert [out.token_ids for out in outs] == [
        reference(make(name), prompt, 24) for prompt in prompts
    ]


@pytest.mark.parametrize("block", BLOCKS)
def test_seeded_text_equals_plain_decoding(pair: Pair, block: int | None) -> None:
    params = [
        SamplingParams(18, 0.7 + 0.1 * seed, seed=seed - 3) for seed in range(len(pair.prompts))
    ]
    plain = LLM(pair.target).generate(pair.prompts, params)
    outs = LLM(pair.target, drafter=jacobi(block), max_batch=3).generate(pair.prompts, params)
    assert [out.token_ids for out in outs] == [out.token_ids for out in plain]


@pytest.mark.parametrize("block", BLOCKS)
def test_ragged_budgets_and_an_abort(pair: Pair, block: int | None) -> None:
    check_aborts(pair, jacobi(block), RAGGED)


@pytest.mark.parametrize("block", [0, -4])
def test_blocks_below_one_token_are_refused(block: int) -> None:
    with pytest.raises(ConfigError, match=rf"jacobi: block: got {block}; expected at least 1"):
        JacobiOptions(block)
