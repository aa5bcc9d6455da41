"""Part exact: answers of every drafter against plain decoding and transformers' `generate`.

In half precision, products round differently for different numbers of rows. An answer may then
differ where the two best logits are nearly equal, so each difference comes with their gap.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from gpu_parts.models import best_gap, free_memory
from gpu_parts.run import Case, Run, Values
from paceline import LLM, SamplingParams, demo
from paceline.drafters import available, entry
from paceline.engine.completion import Completion
from paceline.report.prompts import encode, load_prompts

_MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "top_p": 0.95, "seed": 7},
    "penalties and logprobs": {
        "repetition_penalty": 1.1,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "logprobs": 3,
    },
}
# These sample their drafts, so that a seed gives another text of the same distribution.
_SAMPLING_DRAFTERS = ("draft_model", "specdec_pp", "ouroboros")


@dataclass
class Expected:
    """Plain answers by data type and mode, and the prompts.

    Attributes:
        run: Options of the run.
        answers: Answers computed so far.
    """

    run: Run
    answers: dict[tuple[str, str], list[Completion]] = field(default_factory=dict)
    _plain: dict[str, LLM] = field(default_factory=dict)

    def plain(self, dtype: str) -> LLM:
        """Return the engine that decodes plainly, one request at a time."""
        if dtype not in self._plain:
            self._plain = {dtype: _engine(self.run, "none", dtype, 1)}
        return self._plain[dtype]

    def prompts(self, dtype: str) -> list[list[int]]:
        """Return the token ids of the prompts."""
        chosen = load_prompts(limit=self.run.sizes.exact_prompts)
        return [encode(prompt, self.plain(dtype).tokenizer) for prompt in chosen]

    def of(self, dtype: str, mode: str) -> list[Completion]:
        """Return the plain answers."""
        if (dtype, mode) not in self.answers:
            params = _params(self.run, mode)
            self.answers[dtype, mode] = self.plain(dtype).generate(self.prompts(dtype), params)
        return self.answers[dtype, mode]


def cases(run: Run) -> Iterator[Case]:
    """Count the answers that equal plain answers; greedy answers come first."""
    expected = Expected(run)
    names = run.sizes.drafters or tuple(available())
    order = [("greedy", dtype) for dtype in run.sizes.dtypes]
    order += [(mode, dtype) for mode in _MODES if mode != "greedy" for dtype in run.sizes.dtypes]
    for mode, dtype in order:
        if mode == "greedy":
            yield Case(f"{dtype}, transformers", partial(_transformers, expected, dtype))
        for batch, name in itertools.product(run.sizes.exact_batches, names):
            if mode == "sampled" and name in _SAMPLING_DRAFTERS:
                continue
            title = f"{dtype}, {mode}, {name}, batch {batch}"
            yield Case(title, partial(_drafter, expected, (dtype, mode), name, batch))


def _params(run: Run, mode: str) -> SamplingParams:
    return SamplingParams(max_new_tokens=run.sizes.exact_tokens, ignore_eos=True, **_MODES[mode])


def _engine(run: Run, name: str, dtype: str, batch: int) -> LLM:
    needs = entry(name)
    return LLM(
        demo.TARGET,
        f"{name}:datastore=demo" if needs.needs_store else name,
        draft_model="demo" if needs.needs_draft_model else None,
        dtype=dtype,
        device=str(run.device),
        max_batch=batch,
        batch_invariant=False,
        fixed_shapes=run.fixed_shapes,
    )


def _transformers(expected: Expected, dtype: str) -> Values:
    """Compare plain answers with those of `generate`."""
    model, count = expected.plain(dtype).model.model, expected.run.sizes.exact_tokens
    theirs = []
    for prompt in expected.prompts(dtype):
        ids = torch.tensor([prompt], device=model.device)
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
        )
        theirs.append(output[0, len(prompt) :].tolist())
    return _compared(expected, dtype, "greedy", theirs)


def _drafter(expected: Expected, kind: tuple[str, str], name: str, batch: int) -> Values:
    """Compare a drafter's answers with plain ones."""
    run, (dtype, mode) = expected.run, kind
    wanted, start = expected.of(dtype, mode), time.monotonic()
    llm = _engine(run, name, dtype, batch)
    answers = llm.generate(expected.prompts(dtype), _params(run, mode))
    seconds = time.monotonic() - start
    result = _compared(expected, dtype, mode, [answer.token_ids for answer in answers])
    if mode.endswith("logprobs"):
        result["max_logprob_error"] = _logprob_error(wanted, answers)
    stats = [answer.stats for answer in answers]
    result["tokens_per_forward"] = sum(one.tokens_per_forward for one in stats) / len(stats)
    result["seconds"] = seconds
    free_memory()
    return result


def _compared(expected: Expected, dtype: str, mode: str, answers: list[list[int]]) -> Values:
    """Return the number of equal answers, and where the others differ first."""
    wanted = [answer.token_ids for answer in expected.of(dtype, mode)]
    prompts, model = expected.prompts(dtype), expected.plain(dtype).model.model
    differences: list[Values] = []
    for index, (one, other) in enumerate(zip(answers, wanted, strict=True)):
        if one == other:
            continue
        pairs = itertools.zip_longest(one, other)
        place = next(at for at, (left, right) in enumerate(pairs) if left != right)
        best, gap = best_gap(model, prompts[index] + other[:place])
        differences.append(
            {
                "prompt": index,
                "token": place,
                "got": one[place : place + 1],
                "expected": other[place : place + 1],
                "best": best,
                "gap": gap,
            }
        )
    result: Values = {"equal": f"{len(wanted) - len(differences)}/{len(wanted)}"}
    if differences:
        result["max_gap"] = max(one["gap"] for one in differences)
        result["differences"] = differences
    return result


def _logprob_error(wanted: list[Completion], answers: list[Completion]) -> float:
    """Return the largest difference of log-probabilities while the answers are equal."""
    largest = 0.0
    for plain, answer in zip(wanted, answers, strict=True):
        tokens = zip(plain.token_ids, answer.token_ids, strict=False)
        scores = zip(plain.logprobs or [], answer.logprobs or [], strict=False)
        for (token, other), (one, two) in zip(tokens, scores, strict=False):
            if token != other:
                break
            largest = max(largest, abs(one[token] - two[token]))
    return largest
