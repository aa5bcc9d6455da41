"""Test that bad requests get a clear error, never 500, and leave nothing."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.drafters import available
from tests.support.serving import KEY, Served

HEADERS = {"authorization": f"Bearer {KEY}"}
COMPLETION = {"prompt": "x", "max_tokens": 2}
CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
BAD_BODIES = [
    b"",
    b"{",
    b"[]",
    b'"x"',
    b"null",
    b'{"prompt": "\xff\xfe"}',
    b'{"prompt": "\\ud800"}',
    b"[" * 100_000,
    b'{"prompt": "x", "temperature": NaN}',
    b'{"prompt": "x", "temperature": 1e999}',
    b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}",
    b'{"prompt": "x", "\\ud800": 1, "stop": "\\udfff"}',
    b'{"prompt": "x", "speculation": "\\ud800"}',
]
BAD_COMPLETIONS: list[tuple[dict[str, Any], str | None]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": {}}, "prompt"),
    ({"prompt": ["x", 1]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [10**9]}, "prompt"),
    ({"prompt": [10**30]}, "prompt"),
    ({"prompt": [2**62], "echo": True}, "prompt"),
    ({"prompt": [-5], "echo": True}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": "x " * 3000}, "prompt"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": "many"}, "max_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 2}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"n": 0}, "n"),
    ({"n": -3}, "n"),
    ({"n": 10**6}, "n"),
    ({"n": 129}, "n"),
    ({"n": 2, "temperature": 0}, "n"),
    ({"seed": 2**64}, "seed"),
    ({"seed": "x"}, "seed"),
    ({"stop": [""]}, "stop"),
    ({"stop": 5}, "stop"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias"),
    ({"logit_bias": {"99999999": 1}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": -1}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"logprobs": 21, "echo": True}, "logprobs"),
    ({"best_of": 3}, "best_of"),
    ({"suffix": "x"}, "suffix"),
    ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ({"skip_special_tokens": 0}, "skip_special_tokens"),
    ({"stream": "yes"}, "stream"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"stop_token_ids": [10**7]}, "stop_token_ids"),
    ({"bad_words": [""]}, "bad_words"),
    ({"min_tokens": 5}, "min_tokens"),
    ({"ignore_eos": 1}, "ignore_eos"),
    ({"speculation": "no_such"}, "speculation"),
    ({"speculation": "xyzzy"}, "speculation"),
    ({"speculation": ""}, "speculation"),
    ({"speculation": 7}, "speculation"),
    ({"speculation": {"drafter": "prompt_lookup", "max_draft_token": 3}}, "speculation"),
    ({"speculation": {"drafter": "prompt_lookup", "max_draft_tokens": []}}, "speculation"),
    ({"speculation": {"max_draft_tokens": 3}}, "speculation"),
    ({"speculation": {"drafter": "prompt_lookup", "max_nodes": -1}}, "speculation"),
    ({"speculation": "sssd:datastore=/etc"}, "speculation"),
    ({"speculation": "token_recycling:pool_file=/tmp/x"}, "speculation"),
    ({"speculation": "auto:draft_head=/etc/passwd"}, "speculation"),
    ({"response_format": {"type": "xml"}}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"schema": {"type": "no such"}},
            }
        },
        None,
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"schema": {"$ref": "#/nowhere"}},
            }
        },
        None,
    ),
]
BAD_CHATS: list[tuple[dict[str, Any], str | None]] = [
    ({"messages": []}, "messages"),
    ({"messages": "x"}, "messages"),
    ({"messages": [{}]}, "messages"),
    ({"messages": [5]}, "messages"),
    ({"messages": [{"role": 1, "content": "x"}]}, "messages"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages"),
    (
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
            ]
        },
        "messages",
    ),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": 1}, "logprobs"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"add_generation_prompt": 0}, "add_generation_prompt"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
    ({"chat_template": "x"}, "chat_template"),
    ({"chat_template_kwargs": {"tokenize": False}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
]


def check(found: Any, status: int = 400, param: str | None = None) -> None:
    assert found.status_code == status, found.text
    error = found.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"].endswith(".")
    if param is not None:
        assert error["param"] == param, error
        assert param in error["message"]


@pytest.mark.parametrize("body", BAD_BODIES, ids=lambda body: str(body[:24]))
def test_invalid_bodies_are_refused(server: Served, body: bytes) -> None:
    check(server.post("/v1/completions", body, headers=HEADERS))


@pytest.mark.parametrize(("change", "param"), BAD_COMPLETIONS, ids=str)
def test_bad_completions_are_refused(
    server: Served, change: dict[str, Any], param: str | None
) -> None:
    for stream in (False, True):
        check(
            server.post(
                "/v1/completions", COMPLETION | {"stream": stream} | change, headers=HEADERS
            ),
            400,
            param,
        )


@pytest.mark.parametrize(("change", "param"), BAD_CHATS, ids=ascii)
def test_bad_chats_are_refused(server: Served, change: dict[str, Any], param: str | None) -> None:
    check(server.post("/v1/chat/completions", CHAT | change, headers=HEADERS), 400, param)


@pytest.mark.parametrize(
    ("path", "change", "message"),
    [
        ("completions", {"stream_options": "4"}, "stream_options: got '4'; expected an object."),
        ("completions", {"logit_bias": 3}, "logit_bias: got 3; expected an object."),
        (
            "completions",
            {"temperature": -1},
            "temperature: got -1; expected a number greater than or equal to 0.",
        ),
        (
            "completions",
            {"speculation": {"max_nodes": -1}},
            "speculation.max_nodes: got -1; expected a number greater than or equal to 0.",
        ),
        (
            "completions",
            {"speculation": "xyzzy"},
            "speculation: there is no drafter 'xyzzy'. Expected one of: "
            f"{', '.join(sorted(available()))}.",
        ),
        ("completions", {"stop": [5]}, "stop.0: got 5; expected a valid string."),
        (
            "completions",
            {"prompt": [None]},
            "prompt.0: got None; expected a valid string or a valid integer or a valid list.",
        ),
        (
            "chat/completions",
            {"prediction": {"type": "x"}},
            "prediction.type: got 'x'; expected 'content'.",
        ),
        ("messages", {"messages": []}, "messages: got []; expected at least 1 entry."),
    ],
)
def test_messages_name_the_invalid_value(
    server: Served, path: str, change: dict[str, Any], message: str
) -> None:
    fields = COMPLETION if path == "completions" else CHAT
    found = server.post(f"/v1/{path}", fields | change, headers=HEADERS)
    check(found)
    assert found.json()["error"]["message"] == message


def test_unknown_models_paths_and_methods_are_refused(server: Served) -> None:
    check(
        server.post("/v1/completions", COMPLETION | {"model": "gpt-4"}, headers=HEADERS),
        404,
        "model",
    )
    check(server.post("/v1/nothing", {}, headers=HEADERS), 404)
    for path, hint in (
        ("chat/completions", " The path is /v1/chat/completions: the client's base_url must end"),
        ("nothing", "expected a request as in the server's /openapi.json."),
    ):
        found = server.post(f"/{path}", CHAT, headers=HEADERS)
        check(found, 404)
        message = found.json()["error"]["message"]
        assert hint in message
        assert ("base_url" in message) is (path != "nothing")
    assert server.post("/v1/models", {}, headers=HEADERS).status_code == 405
    check(
        server.post(
            "/v1/completions", b"prompt=x", headers=HEADERS | {"content-type": "text/plain"}
        )
    )


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded"])
def test_json_without_its_content_type_is_refused(server: Served, kind: str) -> None:
    headers = HEADERS | {"content-type": kind}
    found = server.post("/v1/completions", b'{"prompt": "x"}', headers=headers)
    check(found)
    assert "with the header Content-Type: application/json." in found.json()["error"]["message"]


def test_large_bodies_are_refused(server: Served) -> None:
    """Check bodies with a declared length, and bodies in chunks without one."""
    large = b'{"prompt": "' + b"x" * (21 << 20) + b'"}'
    headers = HEADERS
    check(server.post("/v1/completions", large, headers=headers), 413)
    chunks = (large[start : start + 65536] for start in range(0, len(large), 65536))
    check(server.post("/v1/completions", {}, content=chunks, headers=headers), 413)


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": "Bearer x"}, {"authorization": KEY}, {"authorization": "Bearer \xff"}],
)
def test_requests_without_a_key_are_refused(server: Served, headers: dict[str, str]) -> None:
    encoded = {name: value.encode("latin-1") for name, value in headers.items()}
    found = server.post("/v1/completions", COMPLETION, headers=encoded)
    check(found, 401)
    assert found.headers["www-authenticate"] == "Bearer"
    assert server.get("/health").status_code == 200


def test_the_server_works_after_bad_requests(server: Served) -> None:
    assert server.post("/v1/completions", COMPLETION, headers=HEADERS).status_code == 200
    assert server.open_work() == 0
