"""Define limits for parsing answers and for the tools of a request."""

from __future__ import annotations

import re

WHITESPACE = " \t\r\n"  # white space in JSON, and between the parts of a tool call
# As in OpenAI's API, and dots, which Python and Llama's templates use.
TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
MAX_TOOLS = 128  # per request, as in OpenAI's API
AUTO, OFF = "auto", "none"  # names for --tool-call-parser and --reasoning-parser
PROMPT_END_TOKENS = 64  # last tokens of a prompt, searched for the start of reasoning
