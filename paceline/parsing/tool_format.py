"""Define the formats of tool calls, and detect which one a chat template uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.errors import ConfigError, did_you_mean
from paceline.parsing import call_rules
from paceline.parsing.formats import (
    deepseek,
    gemma4,
    harmony,
    hermes,
    llama3,
    mistral,
    pythonic,
    qwen3_coder,
)
from paceline.parsing.parser import ReadAnswer
from paceline.parsing.rules import RuleWriter

WriteCall = Callable[[str, Mapping[str, Any], RuleWriter], str]


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """The format in which a family of models writes tool calls.

    Attributes:
        name: Name of the format, as passed to `--tool-call-parser`.
        read: Generator function that parses answers in this format.
        marks: Texts that identify the family. All of its chat templates contain these texts.
        write_call: Function that returns the grammar expression for one call, given the tool's
            name, the schema of the tool's arguments and the writer of the grammar's rules.
        first: Text before the first call.
        between: Text between two calls.
        last: Text after the last call.
        max_calls: Maximum number of calls in an answer; None means no limit.
        markers: Texts that reach `read` even if they are special tokens. Apart from reasoning
            markers, all other special tokens are hidden from `read`.
        prefix: Text that precedes an answer without calls.
        opening: Text that marks the start of the first call after other text; "" if an answer
            contains either text or calls, but not both.
    """

    name: str
    read: ReadAnswer
    marks: tuple[str, ...]
    write_call: WriteCall
    first: str = ""
    between: str = ""
    last: str = ""
    max_calls: int | None = None
    markers: tuple[str, ...] = ()
    prefix: str = ""
    opening: str = ""

    def calls(
        self, schemas: Mapping[str, Mapping[str, Any]], single: bool, rules: RuleWriter
    ) -> str:
        """Return the grammar expression for one or more tool calls.

        Args:
            schemas: Argument schemas of the callable tools, by tool name.
            single: Whether the answer may contain only one call.
            rules: Writer that collects the rules of the grammar.
        """
        each = [self.write_call(name, schema, rules) for name, schema in schemas.items()]
        call = rules.rule(" | ".join(each))
        several = "" if single or self.max_calls == 1 else self._following(call, rules)
        ends = [rules.literal(text) if text else "" for text in (self.first, self.last)]
        return " ".join(part for part in (ends[0], call, several, ends[1]) if part)

    def _following(self, call: str, rules: RuleWriter) -> str:
        between = f"{rules.literal(self.between)} " if self.between else ""
        return f"({between}{call})*"


FORMATS = {
    entry.name: entry
    for entry in (
        ToolFormat(
            "harmony",
            harmony.read_harmony,
            (harmony.CHANNEL, harmony.MESSAGE),
            call_rules.harmony_call,
            max_calls=1,
            markers=harmony.SPECIAL,
            prefix=harmony.FINAL,
            opening=f"{harmony.CHANNEL}commentary",
        ),
        ToolFormat(
            "gemma4",
            gemma4.read_gemma4,
            (gemma4.OPEN,),
            call_rules.gemma4_call,
            markers=(gemma4.OPEN, gemma4.CLOSE, gemma4.QUOTE),
            opening=gemma4.OPEN,
        ),
        ToolFormat(
            "qwen3_coder",
            qwen3_coder.read_qwen3_coder,
            (qwen3_coder.FUNCTION,),
            call_rules.qwen3_coder_call,
            between="\n",
            markers=(qwen3_coder.OPEN, qwen3_coder.CLOSE),
            opening=qwen3_coder.OPEN,
        ),
        ToolFormat(
            "deepseek_v3",
            deepseek.read_deepseek,
            (deepseek.CALLS_BEGIN, "```json"),
            call_rules.deepseek_v3_call,
            first=deepseek.CALLS_BEGIN,
            between="\n",
            last=deepseek.CALLS_END,
            markers=deepseek.SPECIAL,
            opening=deepseek.CALLS_BEGIN,
        ),
        ToolFormat(
            "deepseek_v31",
            deepseek.read_deepseek,
            (deepseek.CALLS_BEGIN,),
            call_rules.deepseek_call,
            first=deepseek.CALLS_BEGIN,
            last=deepseek.CALLS_END,
            markers=deepseek.SPECIAL,
            opening=deepseek.CALLS_BEGIN,
        ),
        ToolFormat(
            "lfm2",
            pythonic.read_lfm2,
            (pythonic.OPEN,),
            call_rules.python_call,
            first=f"{pythonic.OPEN}[",
            between=", ",
            last=f"]{pythonic.CLOSE}",
            markers=(pythonic.OPEN, pythonic.CLOSE),
            opening=pythonic.OPEN,
        ),
        ToolFormat(
            "mistral",
            mistral.read_mistral,
            (mistral.OPEN, mistral.ARGUMENTS),
            call_rules.mistral_call,
            markers=(mistral.OPEN, mistral.CALL_ID, mistral.ARGUMENTS),
            opening=mistral.OPEN,
        ),
        ToolFormat(
            "mistral_v3",
            mistral.read_mistral,
            (mistral.OPEN,),
            call_rules.mistral_list_call,
            first=f"{mistral.OPEN}[",
            between=", ",
            last="]",
            markers=(mistral.OPEN,),
            opening=mistral.OPEN,
        ),
        ToolFormat(
            "hermes",
            hermes.read_hermes,
            (hermes.OPEN,),
            call_rules.hermes_call,
            between="\n",
            markers=(hermes.OPEN, hermes.CLOSE),
            opening=hermes.OPEN,
        ),
        ToolFormat(
            "pythonic",
            pythonic.read_pythonic,
            ("func_name1(",),
            call_rules.python_call,
            first="[",
            between=", ",
            last="]",
        ),
        ToolFormat(
            "llama3_json",
            llama3.read_llama3_json,
            ("<|start_header_id|>", "parameters"),
            call_rules.llama3_call,
            between="; ",
            markers=(llama3.TAG,),
        ),
    )
}


def find_format(template: str) -> ToolFormat | None:
    """Detect the tool-call format that a chat template uses; return None if unknown."""
    return next(
        (each for each in FORMATS.values() if all(mark in template for mark in each.marks)), None
    )


def named_format(name: str) -> ToolFormat:
    """Return the tool-call format with the given name.

    Raises:
        ConfigError: No format has this name.
    """
    if name not in FORMATS:
        raise ConfigError(
            f"\0tool_call_parser\0: got {name[:60]!r}; expected one of {', '.join(FORMATS)}."
            f"{did_you_mean(name[:60], FORMATS)}"
        )
    return FORMATS[name]
