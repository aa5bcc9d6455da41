"""Load models, tokenizers and the engine for a command.

The module imports torch only on demand, so that a command's help appears immediately.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from paceline import demo
from paceline.drafters import entry
from paceline.util.config import split_spec
from paceline.util.garbage_collection import collection_paused, exempt_until_exit

if TYPE_CHECKING:
    from paceline.engine.parallel.ranks import Ranks
    from paceline.llm import LLM
    from paceline.util.options import ModelOptions

_TARGET_LOADING = "paceline.engine.target_loading"


def use_threads(count: int | None) -> None:
    """Set torch's number of CPU threads; None keeps torch's default."""
    if count:
        import torch

        torch.set_num_threads(count)


def build_llm(
    models: ModelOptions, drafter: str, ranks: Ranks | None = None, **options: Any
) -> LLM:
    """Build the `LLM` for a command.

    Args:
        models: Model options; the model "demo" selects the built-in models.
        drafter: Drafter spec.
        ranks: The group of processes in a parallel run.
        options: Other arguments for `LLM`.
    """
    drafter_entry = entry(split_spec(drafter)[0])
    if _TARGET_LOADING not in sys.modules:
        with collection_paused():
            import_module(_TARGET_LOADING)  # `LLM` would import this later
            exempt_until_exit()  # the imported modules last that long
    from paceline.llm import LLM

    use_threads(models.threads)
    draft_name = demo.draft_name(models.model, models.draft_model)
    uses_draft_model = drafter_entry.needs_draft_model or (
        drafter_entry.takes_draft_model and models.draft_model is not None
    )
    draft = demo.draft_of(draft_name) if uses_draft_model and draft_name is not None else None
    target = demo.target_of(models.model)
    return LLM(
        target,
        drafter,
        draft,
        dtype=models.dtype,
        device=models.device,
        lookahead_parallel=ranks or False,
        batch_invariant=models.invariance,
        engine=models.engine,
        unpack=models.unpack,
        weights=models.weights,
        **options,
    )


def load_tokenizer(name: str) -> Any:
    """Load the tokenizer for a command.

    Args:
        name: Directory or hub id. "demo" is the tokenizer of the built-in models. "mistral-common"
            is the 32k tokenizer of the package with that name.
    Raises:
        ConfigError: The tokenizer cannot be loaded.
    """
    from paceline.datastore.mistral import MISTRAL, MistralTokenizer

    if name == MISTRAL:
        return MistralTokenizer()
    from paceline.model.tokenizer_loading import load_tokenizer as load

    source = demo.target_of(name)
    return load(source, source, unpack=False)
