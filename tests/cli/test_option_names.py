"""Test that error messages name options as the user types them."""

from __future__ import annotations

import pytest

from paceline.cli.main import app
from paceline.cli.option_names import with_option_names
from paceline.errors import ConfigError
from paceline.training.inputs import hold_out


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("LLM: max_length: got 1; expected 2.", "--max-length: got 1; expected 2."),
        ("max_new_tokens: got -1.", "-n: got -1."),
        ("answers 'a.jsonl': seed: got 1; expected 0.", "answers 'a.jsonl': --seed: got 1; exp"),
        ("Pass batch_invariant=False.", "Pass --batch-invariant off."),
        ("weights='q8_0': got a GGUF file.", "--weights q8_0: got a GGUF file."),
        ("Pass draft_model=DIR, or a file.", "Pass --draft-model DIR, or a file."),
        ("Reduce max_new_tokens.", "Reduce -n."),
        ("Convert it (unpack=True).", "Convert it (--unpack)."),
        ("Leave it packed (unpack=False).", "Leave it packed (--no-unpack)."),
    ],
)
@pytest.mark.parametrize("flag", ["--unpack", "--no-unpack"])
def test_python_names_become_options(message: str, expected: str, flag: str) -> None:
    words = ["generate", "demo", "hi", "-n", "3", flag]
    assert with_option_names(message, app, words).startswith(expected)


@pytest.mark.parametrize(
    "message",
    [
        "draft_model: max_length: got 0; expected at least 1.",
        "drafter 'x' has no option 'y'. Expected one of: max_length.",
        "there is no drafter 'x'. Expected one of: auto, draft_model, jacobi.",
        "cannot load a model from 'max_new_tokens.gguf': seed: it is damaged.",
        "p.jsonl:2: system: got 1; expected a text.",
        "got 'draft_model:max_length=4,seed=5' twice.",
        "/data/my seed=3 prompts.txt: there are no prompts. Add one per line.",
    ],
)
def test_other_names_do_not_change(message: str) -> None:
    assert with_option_names(message, app, ["generate", "demo", "hi"]) == message


def test_too_few_answers_to_hold_any_out() -> None:
    with pytest.raises(ConfigError, match="got 3 answers; expected at least 16") as caught:
        hold_out("draft-head train", [1, 2, 3], 16)
    shown = with_option_names(str(caught.value), app, ["draft-head", "train", "demo"])
    assert shown.endswith("Record more answers, or pass a smaller --held-out N.")
