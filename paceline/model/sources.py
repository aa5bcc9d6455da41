"""Resolve a model's name: a directory, hub id, GGUF file or built-in name."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from huggingface_hub import constants, get_session
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.file_download import repo_folder_name
from transformers import PreTrainedModel

from paceline import demo
from paceline.model import gguf, gguf_checkpoint, gguf_header
from paceline.model.settings import MAX_HUB_SECONDS
from paceline.util.files import parse_json

_ADAPTER = "adapter_config.json"  # config of a PEFT adapter
_WEIGHTS = (".safetensors", ".safetensors.index.json")
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")


def missing_source(source: str | Path) -> str:
    """Explain why a path contains no model, as a clause for an error message.

    The result is "" if the path has a model, or if the name may be a hub id or a built-in name.
    """
    is_file = str(source).endswith(".gguf")
    try:
        exists = source != "" and Path(source).exists()
    except OSError as error:
        return f"{error.strerror}. Check the path and its permissions."
    if exists or (isinstance(source, str) and not is_file and _HUB_ID.fullmatch(source)):
        if _holds_state_head(Path(source)):
            return (
                "the folder holds a head, not a model. Draft with it: --drafter"
                f" state_head:head={source}"
            )
        return "" if exists or source in (demo.NAME, demo.SMOLLM2) else _hub_problem(str(source))
    return f"there is no such {'file' if is_file else 'folder'}. Check the path."


def unusable_source(source: str | Path) -> str:
    """Explain why an existing path is not a model, as a clause for an error message.

    The result is "" if the path may be a model, or if the path does not exist.
    """
    path = Path(demo.target_of(source) if isinstance(source, str) else source)
    if not path.is_dir():
        if gguf.is_gguf(path) or not path.exists():
            return ""
        return "it is a file, but not a GGUF file. Pass a directory, hub id or GGUF file."
    try:
        files = {file.name for file in path.iterdir()}
    except OSError as error:
        return f"{error.strerror}. Check the path and its permissions."
    if "config.json" not in files:
        if _ADAPTER in files:  # transformers loads the base model and the adapter
            return ""
        packed = next((name for name in sorted(files) if gguf.is_gguf(name)), None)
        fix = f"its file {packed}" if packed else "the directory of a model"
        return f"the directory has no config.json. Pass {fix}."
    if not any(name.endswith(_WEIGHTS) for name in files):
        if any(name.startswith("pytorch_model") for name in files):
            return (
                "its weights are pickles (pytorch_model.bin), which paceline does not load. Convert"
                " them to safetensors, or pass a GGUF file."
            )
        return (
            "the directory has a config, but no weights. Download model.safetensors into it, or"
            " pass a GGUF file."
        )
    return ""


def _hub_problem(hub_id: str) -> str:
    """Return a clause that explains why a model cannot be downloaded, or "" if it can.

    Cached models need no download. For other models, the function sends one request per process to
    find out whether the hub is reachable. The hub's own library would retry for a long time.
    """
    cached = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=hub_id, repo_type="model"))
    if (cached / "snapshots").is_dir():
        return ""
    try:
        _reach_hub()
    except OfflineModeIsEnabled:
        problem = "HF_HUB_OFFLINE is set"
    except Exception:  # the type depends on the HTTP library of huggingface_hub
        problem = f"{urlsplit(constants.ENDPOINT).netloc} is not reachable"
    else:
        return ""
    return (
        f"it is not a local path, and {problem}. Check the name, or pass a directory or a GGUF"
        " file."
    )


@lru_cache(maxsize=1)  # only successes
def _reach_hub() -> None:
    get_session().head(constants.ENDPOINT, timeout=MAX_HUB_SECONDS)


def packed_source(source: str | Path | PreTrainedModel) -> Path | None:
    """Return the GGUF file of a model; None if the model has a different format."""
    path = demo.target_of(source) if isinstance(source, str) else source
    return Path(path) if isinstance(path, str | Path) and gguf.is_gguf(path) else None


def tokenizer_source(source: str | Path | PreTrainedModel, unpack: bool) -> str:
    """Return the directory or hub id with a model's tokenizer.

    Args:
        source: Directory, hub id, GGUF file, built-in name or loaded model.
        unpack: Whether a GGUF file is converted. With False, only its header is read.
    """
    packed = None if unpack else packed_source(source)
    if packed is None:
        return checkpoint_source(source)
    return str(gguf_header.described(gguf_header.files_of(packed)))


def checkpoint_source(source: str | Path | PreTrainedModel) -> str:
    """Return a model's directory or hub id, converting a GGUF file if needed."""
    path = demo.target_of(source) if isinstance(source, str) else source
    return (
        str(gguf_checkpoint.converted(path))
        if isinstance(path, str | Path) and gguf.is_gguf(path)
        else str(path)
    )


def _holds_state_head(folder: Path) -> bool:
    """Return whether a folder contains a published draft head, such as EAGLE-3's."""
    try:
        config = parse_json((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and "speculators_model_type" in config
