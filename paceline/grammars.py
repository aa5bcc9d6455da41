"""Constrain answers to JSON, a regular expression or a context-free grammar.

params = SamplingParams(logits_processors=[json_schema(llm.tokenizer, schema, llm.eos_token_ids)])

The llguidance library computes the token masks. A grammar is a logits processor, and receives only
emitted tokens, never draft tokens. Drafting therefore does not change the answer.
"""

from __future__ import annotations

import importlib
import json
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from paceline.errors import ConfigError, install_command
from paceline.util.text_files import MARK
from paceline.util.threads import ForkableLock

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# White space between the parts of JSON. If more is allowed, small models may generate nothing else.
WHITESPACE = " "
# Maximum number of compiled grammars per tokenizer. Each caches lexer states, so it grows with use.
_MAX_GRAMMARS = 32
# Values that each byte of a token mask adds to its eight scores, [256, 8]. Looking them up takes a
# fifth of the time of `masked_fill`.
_EACH_BIT = torch.where(
    torch.from_numpy(
        np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    ).bool(),
    0.0,
    -torch.inf,
)


def json_schema(
    tokenizer: Any,
    schema: Mapping[str, Any] | bool | str,
    eos_token_ids: Iterable[int] | None = None,
) -> Grammar:
    r"""Return a grammar for JSON that is valid under a JSON schema.

    Properties appear in the schema's order. One space is allowed wherever JSON allows white space.
    To allow more white space, or to set other options of llguidance, add `{"x-guidance":
    {"whitespace_pattern": "[ \\n]{1,9}"}}` to the schema.

    Args:
        tokenizer: Fast transformers tokenizer.
        schema: Schema as a mapping or as JSON text; True allows any JSON.
        eos_token_ids: Tokens that may end the answer, such as `LLM.eos_token_ids`. Default: the
            tokenizer's end-of-sequence token.
    Raises:
        ConfigError: The schema cannot be compiled, the tokenizer is not fast or has no
            end-of-sequence token, or llguidance is not installed.
    """
    matcher = _llguidance().LLMatcher
    try:
        parsed = json.loads(schema.removeprefix(MARK)) if isinstance(schema, str) else schema
        text = json.dumps({} if parsed is True else parsed, allow_nan=False)
        grammar = matcher.grammar_from_json_schema(
            text, defaults={"whitespace_pattern": WHITESPACE}
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise _refused("json_schema", schema, str(error)) from error
    return _grammar("json_schema", tokenizer, grammar, schema, eos_token_ids)


def json_object(tokenizer: Any, eos_token_ids: Iterable[int] | None = None) -> Grammar:
    """Return a grammar for any JSON object.

    See `json_schema` for the arguments and errors.
    """
    return json_schema(tokenizer, {"type": "object"}, eos_token_ids)


def regex(tokenizer: Any, pattern: str, eos_token_ids: Iterable[int] | None = None) -> Grammar:
    """Return a grammar for answers that match a regular expression from start to end.

    The syntax is that of Rust's regex library, without look-around. See `json_schema` for the other
    arguments and the errors.
    """
    grammar = _llguidance().LLMatcher.grammar_from_regex(_text("regex", pattern))
    return _grammar("regex", tokenizer, grammar, pattern, eos_token_ids)


def lark(tokenizer: Any, grammar: str, eos_token_ids: Iterable[int] | None = None) -> Grammar:
    """Compile a grammar written in llguidance's dialect of Lark.

    See `json_schema` for the other arguments and the errors.
    """
    compiled = _llguidance().LLMatcher.grammar_from_lark(_text("lark", grammar).removeprefix(MARK))
    return _grammar("lark", tokenizer, compiled, grammar, eos_token_ids)


class Grammar:
    """A logits processor that allows only tokens that the grammar permits next.

    Each object constrains one answer. The token ids in the first call are the prompt. `LLM` copies
    the grammar for each request. The method `generate` of transformers does not copy it, so pass a
    new copy and a single prompt to each call.
    """

    def __init__(self, template: LLMatcher, vocab_size: int) -> None:
        self._template, self._vocab_size = template, vocab_size
        self._matcher: LLMatcher | None = None  # None before the first call
        self._ids: Tensor | None = None  # token ids in the previous call, [1, tokens]

    def __copy__(self) -> Grammar:
        return Grammar(self._template, self._vocab_size)

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores, with -inf for every token that the grammar forbids.

        Args:
            ids: Token ids, [1, tokens]. In the first call, the ids of the prompt. In later calls,
                the ids of the previous call, followed by new tokens.
            scores: Logits of the next token, [1, vocabulary]. The model's vocabulary may exceed the
                tokenizer's.
        Raises:
            ConfigError: The ids belong to a different answer or to several answers, or they contain
                a forbidden token. Also raised if the grammar is too complex.
        """
        if self._matcher is None:
            self._matcher = self._template.deep_copy()
        self._consume(self._matcher, ids)
        return scores + self._bias(self._matcher, scores)

    def forced_tokens(self, new_token_ids: Sequence[int]) -> list[int]:
        """Process new tokens of the answer, and return the tokens that must follow.

        The grammar determines the text that must follow, and the tokenizer turns this text into
        tokens. Use each copy of the grammar in only one way: call this method, or pass the copy as
        a logits processor.

        Args:
            new_token_ids: Tokens added to the answer since the previous call.
        """
        if self._matcher is None:
            self._matcher = self._template.deep_copy()
        if self._matcher.is_error() or not all(map(self._matcher.consume_token, new_token_ids)):
            return []
        return [int(token) for token in self._matcher.compute_ff_tokens()]

    def _consume(self, matcher: LLMatcher, ids: Tensor) -> None:
        num_consumed = ids.shape[1] if self._ids is None else self._ids.shape[1]
        if ids.shape[0] != 1 or (
            self._ids is not None and not torch.equal(ids[:, :num_consumed], self._ids)
        ):
            raise ConfigError(
                f"grammar: got ids of shape {tuple(ids.shape)}, which do not continue the"
                " previous ids; expected one answer, token by token. Pass a separate copy for"
                " every answer: copy.copy(grammar)."
            )
        new = ids[0, num_consumed:].tolist()
        self._ids = ids
        for token in new:
            if not matcher.consume_token(token):
                reason = matcher.get_error() or f"token {token} is forbidden there"
                raise ConfigError(
                    f"grammar: got an answer it cannot follow [{reason}]; expected only tokens"
                    " that the grammar allows."
                )

    def _bias(self, matcher: LLMatcher, scores: Tensor) -> Tensor:
        words = torch.empty((self._vocab_size + 31) // 32, dtype=torch.int32)
        matcher.unsafe_compute_mask_ptr(words.data_ptr(), words.numel() * words.element_size())
        if matcher.is_error():
            raise ConfigError(
                f"grammar: got [{matcher.get_error()}] from llguidance; expected a mask. Make the"
                " grammar simpler."
            )
        packed = words.view(torch.uint8).to(scores.device).int()
        bias = torch.embedding(_EACH_BIT.to(scores.device), packed).view(1, -1)[
            :, : self._vocab_size
        ]
        beyond = scores.shape[-1] - bias.shape[-1]  # logits that only pad the vocabulary
        return torch.nn.functional.pad(bias, (0, beyond), value=-torch.inf)


class _Compiled:
    """A tokenizer in llguidance's format, with its most recently used grammars."""

    def __init__(self, tokenizer: LLTokenizer) -> None:
        self.tokenizer = tokenizer
        self._grammars: OrderedDict[str, LLMatcher] = OrderedDict()

    def matcher(self, grammar: str) -> LLMatcher:
        """Return the matcher of a grammar, in its initial state.

        The caller must check the matcher for errors, and copy it before use.
        """
        matcher = self._grammars.pop(grammar, None)
        if matcher is None:
            matcher = _llguidance().LLMatcher(self.tokenizer, grammar, log_level=0)
        if not matcher.is_error():
            self._grammars[grammar] = matcher
        if len(self._grammars) > _MAX_GRAMMARS:
            self._grammars.popitem(last=False)
        return matcher


_lock = ForkableLock()
_known: weakref.WeakKeyDictionary[Any, dict[tuple[int, ...], _Compiled]] = (
    weakref.WeakKeyDictionary()
)


def _grammar(
    name: str, tokenizer: Any, grammar: str, source: object, eos_token_ids: Iterable[int] | None
) -> Grammar:
    with _lock:
        compiled = _compiled(tokenizer, eos_token_ids)
        matcher = compiled.matcher(grammar)
    if matcher.is_error():
        raise _refused(name, source, matcher.get_error())
    return Grammar(matcher, compiled.tokenizer.vocab_size)


def _compiled(tokenizer: Any, eos_token_ids: Iterable[int] | None) -> _Compiled:
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ConfigError(
            f"grammar: got a tokenizer of type {type(tokenizer).__name__}; expected a fast"
            " transformers tokenizer. Load it with AutoTokenizer.from_pretrained."
        )
    own = tokenizer.eos_token_id
    given = (
        tuple(map(int, eos_token_ids))
        if eos_token_ids is not None
        else ()
        if own is None
        else (int(own),)
    )
    ends = tuple(token for token in given if 0 <= token < len(tokenizer))
    if not ends:
        raise ConfigError(
            f"eos_token_ids: got {list(given)}; expected at least one of the tokenizer's tokens."
            " Pass LLM.eos_token_ids."
        )
    by_ends = _known.setdefault(tokenizer, {})
    key = (len(tokenizer), *ends)  # the length changes when tokens are added
    if key not in by_ends:
        from_tokenizer = importlib.import_module("llguidance.hf").from_tokenizer
        try:
            by_ends[key] = _Compiled(from_tokenizer(tokenizer, eos_token=list(ends)))
        except ValueError as error:
            raise ConfigError(
                f"grammar: got a tokenizer that llguidance cannot read [{error}]; expected a"
                " byte-level tokenizer. Use another model."
            ) from error
    return by_ends[key]


def _llguidance() -> Any:
    try:
        return importlib.import_module("llguidance")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"grammar: llguidance is not installed. Run: {install_command('grammar')}."
        ) from error


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name}: got a {type(value).__name__}; expected a text.")
    return value


def _refused(name: str, source: object, reason: str) -> ConfigError:
    shown = source if isinstance(source, str) else repr(source)
    return ConfigError(
        f"{name}: got {shown[:60]!r}, which cannot be compiled"
        f" [{' '.join(reason.split())[:200]}]; expected one that llguidance accepts. Correct or"
        " simplify it."
    )
