"""Skip tests of features that the installed versions of other packages lack."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from transformers import CONFIG_MAPPING


def require_model_type(model_type: str) -> None:
    """Skip the test if transformers does not have a model type."""
    if model_type not in CONFIG_MAPPING:
        pytest.skip(f"transformers {version('transformers')} does not have {model_type}")


def require_gguf_architecture(name: str) -> None:
    """Skip the test if the `gguf` package does not know an architecture."""
    import gguf  # an optional package

    if name not in gguf.MODEL_ARCH_NAMES.values():
        pytest.skip(f"gguf {version('gguf')} does not know {name}")
