"""What commands load: models, tokenizers, an engine. Nothing here imports torch before it is
called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline import demo
from paceline.drafters import entry
from paceline.util.config import split_spec

if TYPE_CHECKING:
    from paceline.engine.parallel.ranks import Ranks
    from paceline.llm import LLM
    from paceline.util.options import ModelOptions

DEFAULT_DRAFTER = "auto"


def use_threads(count: int | None) -> None:
    """Set the CPU threads of torch, if the option was given."""
    if count:
        import torch

        torch.set_num_threads(count)


def build_llm(
    models: ModelOptions, drafter: str, ranks: Ranks | None = None, **options: Any
) -> LLM:
    """Build the engine of a command; 'demo' names the embedded models. `options` are those of
    `LLM`.
    """
    from paceline.llm import LLM

    use_threads(models.threads)
    name = demo.draft_name(models.model, models.draft_model)
    found = entry(split_spec(drafter)[0])
    wanted = found.needs_draft_model or (found.takes_draft_model and models.draft_model is not None)
    draft = demo.draft_of(name) if wanted and name is not None else None
    target = demo.target_of(models.model)
    return LLM(
        target,
        drafter,
        draft,
        dtype=models.dtype,
        device=models.device,
        lookahead_parallel=ranks or False,
        batch_invariant=models.invariance,
        **options,
    )


def load_tokenizer(name: str) -> Any:
    """Load the tokenizer of a command; 'demo' is the embedded pair's, 'mistral-common' the 32k one
    inside that package.

    Raises:
        ConfigError: it cannot be loaded.
    """
    from paceline.datastore.mistral import MISTRAL, MistralTokenizer

    if name == MISTRAL:
        return MistralTokenizer()
    from paceline.model import loading

    source = demo.target_of(name)
    return loading.load_tokenizer(source, source)
