"""List the commands with the first line of their help, without importing them."""

from __future__ import annotations

COMMANDS = {
    "generate": "Answer prompts; one prompt is streamed, several run as a batch.",
    "chat": "Chat with a model; accepted draft tokens are green on a terminal.",
    "serve": "Serve a model over an OpenAI-compatible HTTP API.",
    "bench": "Compare drafters with transformers' generate: speed and equality of answers.",
    "prompts": "Generate user prompts with a chat model, as input of `paceline record`.",
    "record": "Record a model's answers to prompts as JSON lines.",
    "replay": "Simulate drafters on recorded answers and report tokens per step.",
    "datastore": "Build, extend, inspect and verify datastores for retrieval drafters.",
    "head": "Record data for, train, evaluate and calibrate acceptance heads for the drafter"
    " specdec_pp.",
    "draft": "Train and evaluate a draft model for a target.",
    "draft-head": "Train a hidden-state draft head for the drafter auto.",
    "drafters": "List the drafters with their options and defaults.",
    "cache": "List or clear cached model conversions and measurements in PACELINE_CACHE"
    " (~/.cache/paceline).",
    "verify": "Check that every drafter returns the answers of plain decoding.",
    "doctor": "Report installed packages, processor features and a model's active features.",
    "plan": "Estimate the cost and gain of draft trees of every size and show the best size.",
    "demo": "Compare drafters with transformers on a small model and stream an answer.",
}

# Headings of `paceline --help` and the commands below each.
GROUPS = {
    "Use": ("generate", "chat", "serve"),
    "Measure": ("bench", "verify", "plan", "doctor"),
    "Prepare": ("record", "prompts", "datastore", "draft", "draft-head", "head", "cache"),
    "Research": ("replay", "drafters", "demo"),
}


def command_path(name: str) -> str:
    """Return the import path of a command, as "module:function" or "module:app"."""
    module = name.replace("-", "_")
    return f"paceline.cli.{module}:{module}"
