"""The commands by name, each with the first line of its help, so that a list of them imports
none.
"""

from __future__ import annotations

COMMANDS = {
    "generate": "Answer prompts; a single one is streamed, several run as a batch.",
    "chat": "Hold a conversation with the model. On a terminal accepted draft tokens are green;"
    " /help lists the commands.",
    "serve": "Serve a model to OpenAI's clients. Ctrl-C or SIGTERM lets open requests end first, a"
    " second one does not.",
    "bench": "Time drafters beside transformers' own generate, interleaved prompt by prompt; check"
    " that answers are equal.",
    "paper": "Measure the tables and figures of a paper again, on your models.",
    "prompts": "Let a chat model make up prompts, for record, where nobody has collected its"
    " users'.",
    "record": "Record a model's own answers to prompts, for replay, datastore, head record and the"
    " calibration of sssd.",
    "replay": "Run recorded answers through retrieval drafters: tokens per step, drafted per step,"
    " microseconds per step.",
    "datastore": "Token stores for the retrieval drafters: build one, add to it, look at it,"
    " verify it.",
    "head": "Acceptance heads for the drafter specdec_pp: record a pair of models, train a head,"
    " judge it, measure thresholds.",
    "draft": "Draft models: train a small one for any target from the target's own answers, judge"
    " it.",
    "draft-head": "Foresight for the drafter auto: train what a model's hidden state tells of the"
    " tokens to come.",
    "drafters": "List the drafters with their options and defaults.",
    "cache": "Converted models and proofs that are kept between runs, below PACELINE_CACHE"
    " (~/.cache/paceline).",
    "verify": (
        "Decode every prompt alone and without drafts, then in batches with each drafter; exit"
        " status 1 if any answer differs."
    ),
    "doctor": "Say what is installed, what the processor has, and, for a model, what is in use,"
    " what is off, and why.",
    "plan": "Show what trees of every size cost and bring, and the best size, by the roofline or"
    " as measured on this machine.",
    "demo": (
        "The main job on SmolLM2, else on the embedded pair: drafters beside transformers, a"
        " table, a picture, a streamed answer."
    ),
}

# The headings of `paceline --help`, each with its commands in their order.
GROUPS = {
    "Use": ("generate", "chat", "serve"),
    "Measure": ("bench", "verify", "plan", "doctor"),
    "Prepare": ("record", "prompts", "datastore", "draft", "draft-head", "head", "cache"),
    "Research": ("paper", "replay", "drafters", "demo"),
}


def place(name: str) -> str:
    """Return "module:function" of a command, or "module:app" of one that has commands of its
    own.
    """
    return f"paceline.cli.{name}:{name}"
