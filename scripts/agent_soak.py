"""A scripted agent that reads, edits and tests three toy repositories through a server.

    python scripts/agent_soak.py smollm2 --rounds 3 --transcripts transcripts.jsonl

The agent prescribes which tool is called in each turn, and the model fills in the arguments under
a grammar. Results return to the model. Small models seldom repair the repositories; the script
checks the server: every call is valid, a streamed call equals the same call without a stream, and
the transcripts of all drafters are equal.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from local_server import local_server, openai_client

from paceline import LLM, demo
from paceline.serve import Settings

REPOSITORIES = Path(__file__).parent / "data" / "agent_repos.json"
DRAFTERS = ("none", "auto")
TURNS = ("read_file", "run_tests", "replace_text", "run_tests")
MAX_TOKENS, MAX_OUTPUT, TEST_SECONDS = 200, 400, 60
_DURATION = re.compile(r" in \d+\.\d+s")


class Workspace:
    """A copy of a repository, with the tools of the agent.

    Args:
        folder: Empty folder for the copy.
        files: Text of each file.
    Attributes:
        tools: Definitions of the tools.
    """

    def __init__(self, folder: Path, files: dict[str, str]) -> None:
        self._folder = folder
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        file: dict[str, Any] = {"enum": sorted(files)}
        short = {"type": "string", "minLength": 1, "maxLength": 24}
        self.tools = [
            _tool("read_file", {"file": file}),
            _tool("run_tests", {}),
            _tool("replace_text", {"file": file, "old": short, "new": short}),
        ]

    def run(self, name: str, arguments: dict[str, Any]) -> str:
        """Execute a call, and return its result as text."""
        if name == "run_tests":
            return self._run_tests()
        path = self._folder / arguments["file"]
        before: str = path.read_text(encoding="utf-8")
        if name == "read_file":
            return before
        if arguments["old"] not in before:
            return f"{arguments['file']} does not contain this text."
        after = before.replace(arguments["old"], arguments["new"], 1)
        path.write_text(after, encoding="utf-8")
        return "Replaced."

    def _run_tests(self) -> str:
        command = [sys.executable, "-I", "-m", "unittest", "discover", "-s", str(self._folder)]
        try:
            done = subprocess.run(
                command, cwd=self._folder, capture_output=True, text=True, timeout=TEST_SECONDS
            )
        except subprocess.TimeoutExpired:
            return "The tests did not finish."
        output = _DURATION.sub("", done.stderr)  # all runs of a test have the same result
        return "All tests pass." if done.returncode == 0 else output[-MAX_OUTPUT:]


def _tool(name: str, properties: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": [*properties]}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def next_call(client: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Return the assistant's message with one call, which must be the same in a stream."""
    whole = client.chat.completions.create(**request).choices[0].message
    (call,) = whole.tool_calls
    name, arguments = "", ""
    for event in client.chat.completions.create(**request, stream=True):
        for part in event.choices[0].delta.tool_calls or ():
            name += part.function.name or ""
            arguments += part.function.arguments or ""
    if (name, arguments) != (call.function.name, call.function.arguments):
        raise SystemExit(f"The stream differs: {arguments!r}, {call.function.arguments!r}")
    message: dict[str, Any] = whole.model_dump(exclude_none=True)
    message["tool_calls"][0]["id"] = "call"  # the server's ids differ by request
    return message


def transcript(client: Any, files: dict[str, str], seed: int, drafter: str) -> list[Any]:
    """Let the agent work on a repository, and return the messages.

    Args:
        client: OpenAI's client.
        files: Files of the repository.
        seed: Random seed; 0 decodes greedily.
        drafter: Drafter of all requests.
    """
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(Path(folder), files)
        messages: list[Any] = [{"role": "user", "content": "A test fails. Repair the module."}]
        for turn in TURNS:
            request = {
                "model": "model",
                "messages": messages,
                "tools": workspace.tools,
                "tool_choice": {"type": "function", "function": {"name": turn}},
                "max_tokens": MAX_TOKENS,
                "temperature": 0.7 if seed else 0,
                "seed": seed,
                "extra_body": {"speculation": drafter},
            }
            message = next_call(client, request)
            function = message["tool_calls"][0]["function"]
            result = workspace.run(function["name"], json.loads(function["arguments"]))
            result = result.replace(str(Path(folder).resolve()), "repository")
            messages += [message, {"role": "tool", "tool_call_id": "call", "content": result}]
    return messages


def check(client: Any, rounds: int, drafters: tuple[str, ...] = DRAFTERS) -> list[Any]:
    """Return the transcripts of all repositories, which must not depend on the drafter."""
    repositories = json.loads(REPOSITORIES.read_text(encoding="utf-8"))
    transcripts = []
    for seed in range(rounds):
        for name, files in repositories.items():
            first, *others = (transcript(client, files, seed, drafter) for drafter in drafters)
            if any(each != first for each in others):
                raise SystemExit(f"The transcripts of {name} differ by drafter, seed {seed}.")
            transcripts.append({"repository": name, "seed": seed, "messages": first})
    return transcripts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--transcripts", type=Path)
    options = parser.parse_args()
    llm = LLM(str(demo.target_of(options.model)), max_batch=8)
    with local_server(llm, Settings(("model",))) as url, openai_client(url) as client:
        transcripts = check(client, options.rounds)
    calls = sum(len(each["messages"]) // 2 for each in transcripts)
    print(f"{calls} calls in {len(transcripts)} conversations: all valid and equal")
    if options.transcripts is not None:
        lines = [json.dumps(each, ensure_ascii=False) for each in transcripts]
        options.transcripts.write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
