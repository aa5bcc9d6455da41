"""Test parts of the server: default fields, admission, error responses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline import LLM
from paceline.errors import CapacityError, ConfigError, DrafterError
from paceline.serve.errors import ApiError
from paceline.serve.limits import AdmissionLimit
from paceline.serve.requests import CompletionRequest
from paceline.serve.sampling import Sampler, params_of_answers
from paceline.serve.speculation import Speculations


def test_the_admission_limit_estimates_when_to_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("paceline.serve.limits.time.monotonic", lambda: now)
    gate = AdmissionLimit(3)
    gate.enter(3)
    with pytest.raises(ApiError) as caught:
        gate.enter(1)
    assert (caught.value.status, caught.value.headers) == (429, {"Retry-After": "1"})
    for _ in range(3):
        now += 4
        gate.leave()
    gate.enter(2)
    with pytest.raises(ApiError) as caught:  # all or none: 2 too many, and one ends every 4 seconds
        gate.enter(3)
    assert caught.value.headers == {"Retry-After": "8"}
    assert gate.open == 2


def test_missing_fields_have_defaults(tiny: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defaults come from the model's generation config, as in vLLM.

    Otherwise the temperature is 1 and the seed random.
    """
    own = tiny.model.model.generation_config
    for name, value in {"temperature": 0.6, "top_k": 20, "top_p": 0.9}.items():
        monkeypatch.setattr(own, name, value)

    def made(ignore: bool, **fields: Any) -> Any:
        sampler = Sampler(tiny, Speculations("none"), ignore)
        return sampler.params(CompletionRequest(prompt="x", **fields), 10**30, None)

    found = made(False)
    assert (found.temperature, found.top_k, found.top_p, found.max_new_tokens) == (
        0.6,
        20,
        0.9,
        tiny.max_length,
    )
    found = made(False, temperature=0.1, top_k=-1)
    assert (found.temperature, found.top_k, found.top_p) == (0.1, 0, 0.9)
    found = made(True)
    assert (found.temperature, found.top_k, found.top_p) == (1.0, 0, 1.0)
    assert len({made(True).seed for _ in range(4)}) > 1
    assert [one.seed for one in params_of_answers(made(True, n=3, seed=5))] == [5, 6, 7]
    assert {one.n for one in params_of_answers(made(True, n=3))} == {1}


@pytest.mark.parametrize(
    ("error", "status", "param", "code"),
    [
        (ConfigError("n: got 0; expected 1."), 400, "n", None),
        (ConfigError("prompt 3: got no token; expected one."), 400, "prompt", None),
        (
            CapacityError("prompt 0: got 9 tokens; expected 8."),
            400,
            None,
            "context_length_exceeded",
        ),
        (TimeoutError(), 504, None, None),
        (MemoryError(), 503, None, None),
        (DrafterError("drafter 'x': got a loop"), 500, None, None),
        (RuntimeError("secret"), 500, None, None),
    ],
)
def test_error_responses_for_exceptions(
    error: Exception, status: int, param: str | None, code: str | None
) -> None:
    response = ApiError.from_exception(error)
    assert (response.status, response.param, response.code) == (status, param, code)
    assert "secret" not in response.message
    assert response.body.error.message.encode()


def test_error_responses_may_contain_half_a_surrogate_pair() -> None:
    assert ApiError(400, "x: got '\ud800'").response().body == (
        b'{"error":{"message":"x: got'
        b' \'\\\\ud800\'","type":"invalid_request_error","param":null,"code":null}}'
    )


def test_every_metric_is_documented(tiny: LLM) -> None:
    from paceline.serve.metrics import ServerMetrics

    docs = Path(__file__).parents[2] / "docs"
    page = "".join(path.read_text(encoding="utf-8") for path in docs.rglob("*.md"))
    names = {
        line.split()[2]
        for line in ServerMetrics(tiny, "x").exposition().decode().splitlines()
        if line.startswith("# TYPE paceline:")
    }
    names = {name.removeprefix("paceline:") for name in names if not name.endswith("_created")}
    assert len(names) > 15
    assert [
        name
        for name in names
        if f"`{name}" not in page and f"`{name.removesuffix('_total')}" not in page
    ] == []
