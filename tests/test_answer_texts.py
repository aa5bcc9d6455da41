"""Test output texts: at every length, after prompts, and with stop strings."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessorList

from paceline import LLM, SamplingParams
from paceline.errors import ConfigError
from paceline.integrations.transformers import generate
from paceline.serve.logprobs import AnswerSpelling, chat_logprobs, completion_logprobs
from tests.support.tokenizers import FALLBACK, LOCAL, whole_text

TOKENIZERS: dict[str, Any] = {**LOCAL, **FALLBACK}
TEXT = "the cat sat 你好世😀\nonce more, the cat sat 你好世😀\nend"


class ForcedTokens:
    """Logits processor that forces given tokens."""

    def __init__(self, ids: list[int], start: int) -> None:
        self.ids, self.start = ids, start

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        forced = torch.full_like(scores, float("-inf"))
        forced[:, self.ids[ids.shape[1] - self.start]] = 0.0
        return forced


@cache
def engine(name: str, drafter: str = "prompt_lookup") -> LLM:
    """Return an engine with random weights for a tokenizer."""
    torch.manual_seed(0)
    size = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "eos_token_id": 2,
    }
    config = LlamaConfig(vocab_size=len(TOKENIZERS[name]), max_position_embeddings=512, **size)
    return LLM(LlamaForCausalLM(config).eval(), drafter, tokenizer=TOKENIZERS[name])


def forced_params(prompt: list[int], ids: list[int], **options: Any) -> SamplingParams:
    return SamplingParams(
        **{
            "max_new_tokens": len(ids),
            "logits_processors": [ForcedTokens(ids, len(prompt))],
            **options,
        }
    )


def ids_of(name: str, text: str) -> list[int]:
    ids: list[int] = TOKENIZERS[name](text, add_special_tokens=False)["input_ids"]
    return ids


@pytest.mark.parametrize("name", TOKENIZERS)
def test_chunks_add_up_to_the_text_at_every_length(name: str) -> None:
    """Check that chunks add up to the completion, which continues the prompt."""
    llm, tokenizer, ids = engine(name), TOKENIZERS[name], ids_of(name, TEXT)
    prompt, answer = ids_of(name, TEXT + " ") + ids[:2], ids[2:] if "clean" not in name else ids[3:]
    accepted = 0
    for size in range(1, len(answer) + 1):
        chunks = list(
            llm.stream(prompt, forced_params(prompt, answer, max_new_tokens=size, logprobs=2))
        )
        done = chunks[-1].completion
        assert done is not None
        assert "".join(chunk.text for chunk in chunks) == done.text
        assert whole_text(tokenizer, prompt) + done.text == whole_text(
            tokenizer, prompt + done.token_ids
        )
        accepted += done.stats.accepted_tokens
        if size % 5 == 0:
            assert (
                llm.generate([prompt], forced_params(prompt, answer, max_new_tokens=size))[0].text
                == done.text
            )
            assert done.logprobs is not None
            chat = chat_logprobs(
                AnswerSpelling(tokenizer, prompt), done.token_ids, done.logprobs, 2
            ).content
            assert b"".join(bytes(one.bytes) for one in chat).decode(errors="replace") == done.text
            listed = completion_logprobs(
                AnswerSpelling(tokenizer, prompt), done.token_ids, done.logprobs, 0
            )
            assert "".join(listed.tokens) == done.text
            assert listed.text_offset == [len("".join(listed.tokens[:at])) for at in range(size)]
    assert accepted > len(answer)


@pytest.mark.parametrize("drafter", ["none", "prompt_lookup"])
@pytest.mark.parametrize("stop", ["\n", "。", "世", "好世", "</s>", "at</s>", "t<", "over"])
@pytest.mark.parametrize("name", ["bytes", "llama", "gemma", "unigram"])
def test_stop_strings_stop_where_transformers_does(name: str, stop: str, drafter: str) -> None:
    """Check stop strings after byte tokens, in special tokens and in drafts."""
    text = "the cat sat 你好世界\nonce 你好。more" if stop != "</s>" else "the cat"
    ids = [*ids_of(name, text), 2, *ids_of(name, "你好 over")]
    prompt = ids_of(name, text + "x")
    processors = LogitsProcessorList([ForcedTokens(ids, len(prompt))])
    options: dict[str, Any] = {
        "do_sample": False,
        "max_new_tokens": len(ids),
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    options |= {
        "logits_processor": processors,
        "stop_strings": [stop],
        "tokenizer": TOKENIZERS[name],
    }
    llm = engine(name, drafter)
    expected = llm.model.model.generate(torch.tensor([prompt]), **options)[0].tolist()
    assert (
        generate(llm.model.model, torch.tensor([prompt]), drafter=drafter, **options)[0].tolist()
        == expected
    )
    chunks = list(llm.stream(prompt, forced_params(prompt, ids, stop=stop, ignore_eos=True)))
    done = chunks[-1].completion
    assert done is not None
    assert prompt + done.token_ids == expected
    assert done.finish_reason == (
        "stop" if len(expected) < len(prompt + ids) or stop == "over" else "length"
    )
    assert "".join(chunk.text for chunk in chunks) == done.text
    assert (
        not any(done.text.endswith(stop[:size]) for size in range(1, len(stop) + 1))
        or done.finish_reason == "length"
    )


def test_stop_strings_apply_to_each_of_several_answers() -> None:
    llm, ids = engine("llama"), ids_of("llama", "the cat")
    params = SamplingParams(
        40, temperature=1.0, seed=3, n=4, stop=("a", "e", "<0x"), ignore_eos=True
    )
    answers = llm.generate([ids], params)[0].outputs
    for seed, answer in enumerate(answers, 3):
        (alone,) = llm.generate(
            [ids], SamplingParams(40, temperature=1.0, seed=seed, stop=params.stop, ignore_eos=True)
        )
        assert (alone.text, alone.token_ids, alone.finish_reason) == (
            answer.text,
            answer.token_ids,
            answer.finish_reason,
        )
        assert not any(stop in answer.text for stop in params.stop)


class ShortTokenizer:
    """Tokenizer with fewer tokens than its model; it raises for the others."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(char) - 97 for char in text]}

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        if max(token_ids) > 20:
            raise KeyError(max(token_ids))
        return "".join(chr(97 + token) for token in token_ids)


def test_a_tokenizer_error_ends_only_its_request() -> None:
    llm = LLM(engine("llama").model.model, "none", tokenizer=ShortTokenizer())
    one, other = (
        forced_params([5, 6], [7, 8, 30, 9], stop="x"),
        forced_params([5, 6], [7, 8, 9, 9, 9, 9], stop="i"),
    )
    done: list[str] = []
    with ThreadPoolExecutor(1) as threads:
        background = threads.submit(lambda: done.append(llm.generate([[5, 6]], other)[0].text))
        with pytest.raises(ConfigError, match="stop: got KeyError"):
            llm.generate([[5, 6]], one)
        background.result()
    assert done == ["h"]


def test_a_prompt_that_ends_within_a_character() -> None:
    """The output contains the whole character that it completes."""
    for name in ("bytes", "llama"):
        ids = ids_of(name, "a😀b")
        prompt, answer = ids[:-2], ids[-2:]
        assert engine(name).generate([prompt], forced_params(prompt, answer))[0].text == "😀b"
        (done,) = engine(name).generate([prompt[:-1]], forced_params(prompt[:-1], ids[-3:-2]))
        assert done.text == ""
