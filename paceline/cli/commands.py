"""List every command with the first line of its help, without importing commands."""

from __future__ import annotations

COMMANDS = {
    "generate": "Answer one prompt as a stream, or several as a batch.",
    "chat": "Chat with a model in the terminal.",
    "serve": "Serve a model over an OpenAI-compatible HTTP API.",
    "bench": "Measure the speed of drafters and check their answers.",
    "paper": "Reproduce the tables and figures of a paper with your models.",
    "prompts": "Generate user prompts with a chat model, for `paceline record`.",
    "record": "Record a model's answers to prompts as JSON lines.",
    "replay": "Simulate drafters on recorded answers, without a model.",
    "datastore": "Build and check datastores for retrieval drafters.",
    "head": "Train acceptance heads for the specdec_pp drafter.",
    "draft": "Train a draft model for a target model, and evaluate it.",
    "draft-head": "Train a hidden-state draft head for the auto drafter.",
    "drafters": "List the drafters with their options and defaults.",
    "cache": "List or clear cached conversions and measurements.",
    "verify": "Check that drafters return the same answers as plain decoding.",
    "doctor": "Report details of the installation, the machine and a model.",
    "demo": "Compare drafters with transformers on a small model.",
}

# Headings in `paceline --help`, with the commands under each heading.
GROUPS = {
    "Use": ("generate", "chat", "serve"),
    "Measure": ("bench", "verify", "doctor"),
    "Prepare": ("record", "prompts", "datastore", "draft", "draft-head", "head", "cache"),
    "Research": ("paper", "replay", "drafters", "demo"),
}


def command_path(name: str) -> str:
    """Return the import path of a command, as "module:function" or "module:app"."""
    module = name.replace("-", "_")
    return f"paceline.cli.{module}:{module}"
