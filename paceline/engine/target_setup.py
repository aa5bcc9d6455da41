"""Set up a loaded model as the target of an engine.

The engine imports this module, and with it the model code, only when an engine is constructed.
Afterwards, the engine uses the model only through the protocol `paceline.core.target.Target`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel

from paceline.core.settings import (
    PREFILL_CHUNK,
    PREFILL_CHUNK_ON_CUDA,
    BatchInvariant,
    FixedShapes,
)
from paceline.core.vocabulary_check import check_vocabulary
from paceline.draft_budget.budget import DraftBudget
from paceline.draft_budget.cost_curve import CostCurve
from paceline.draft_budget.costs import Costs
from paceline.draft_budget.prefill_chunking import PrefillChunkController
from paceline.draft_budget.settings import DEFAULTS, DraftBudgetSettings
from paceline.draft_head.find import DraftHeads
from paceline.engine.parallel.model import ParallelLM
from paceline.errors import ConfigError, UnsupportedModelError
from paceline.invariance.invariance import Invariance, resolve_batch_invariance
from paceline.model.self_check import checked_model

if TYPE_CHECKING:
    from paceline.core.drafter import Drafter
    from paceline.core.timed_target import TimedTarget
    from paceline.engine.parallel.ranks import Ranks
    from paceline.engine.target_loading import LoadedModel
    from paceline.llama_cpp.gguf_model import GgufModel


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """An engine's options for its target; see `paceline.engine.engine.Engine`.

    Attributes:
        max_batch: Maximum number of requests per forward pass; None means no limit.
        max_nodes: Maximum number of draft nodes verified per request and step.
        prefill_chunk: Maximum number of a request's pending tokens per step; None means the
            default for the model's device.
        batch_invariant: Whether logits must not depend on the batch: True, False or "auto".
        fixed_shapes: Whether forward passes are padded to fixed shapes: True, False or "auto".
        ranks: Processes that share the computation of every draft tree; None means this process
            alone.
        cost_curve: Cost of forward passes by number of rows; None means that the engine measures
            it.
        draft_budget: Settings for the draft budget; None means the defaults.
    """

    max_batch: int | None
    max_nodes: int
    prefill_chunk: int | None
    batch_invariant: BatchInvariant
    fixed_shapes: FixedShapes
    ranks: Ranks | None
    cost_curve: CostCurve | None
    draft_budget: DraftBudgetSettings | None


@dataclass(frozen=True, slots=True)
class TargetSetup:
    """A target model that is ready for requests.

    Attributes:
        model: The model with its KV cache.
        invariance: State of batch invariance: on or off, and the reason.
        costs: Measured cost of the model's forward passes; None in a lookahead-parallel run,
            because each process would measure different times.
        draft_budget: Draft budget that cuts draft trees; None in a lookahead-parallel run.
        chunking: Controller that limits prefill chunks while streams are open; None in a
            lookahead-parallel run.
        draft_heads: Hidden-state draft heads of the model; None in a lookahead-parallel run.
    """

    model: TimedTarget
    invariance: Invariance
    costs: Costs | None = None
    draft_budget: DraftBudget | None = None
    chunking: PrefillChunkController | None = None
    draft_heads: DraftHeads | None = None

    @property
    def parallel(self) -> ParallelLM | None:
        """Return the model if several processes share its computation, otherwise None."""
        return self.model if isinstance(self.model, ParallelLM) else None

    def check_drafter(self, drafter: Drafter, tokenizer: Any) -> None:
        """Attach a drafter to the target, after checking that their vocabularies match.

        Args:
            drafter: Drafter to attach.
            tokenizer: Tokenizer of the prompts; None means unknown.
        Raises:
            ConfigError, DatastoreError, UnsupportedModelError: The drafter cannot be used with the
                target.
        """
        check_vocabulary(drafter, self.model.vocab_size, tokenizer)
        drafter.attach(self.model.model, tokenizer)
        if tokenizer is not None:
            drafter.check_tokenizer(tokenizer)
        if self.draft_heads is not None:
            self.draft_heads.check(drafter)


def set_up_target(model: LoadedModel, drafter: Drafter, options: TargetOptions) -> TargetSetup:
    """Check that a loaded model supports lossless verification; create its KV cache.

    Args:
        model: Decoder-only transformers model, in eval mode, on its device; or a GGUF file that
            llama.cpp has loaded.
        drafter: The engine's drafter. In a lookahead-parallel run, its trees must be divisible
            among the ranks (processes).
        options: The engine's options for the model.
    Raises:
        UnsupportedModelError: The model does not support lossless verification.
        ConfigError: Batch invariance is required but impossible. In a lookahead-parallel run, also
            raised if the trees have too few branches, or if the ranks' options or weights differ.
    """
    if not isinstance(model, PreTrainedModel):
        return _set_up_gguf(model, options)
    ranks, batch_invariant = options.ranks, options.batch_invariant
    if ranks is not None and batch_invariant == "auto":
        batch_invariant = False  # measured times differ between ranks, but all ranks must agree
    invariance = resolve_batch_invariance(model, batch_invariant, options.max_batch or 1)
    model_options = _model_options(model, options, invariance)
    try:
        checked = checked_model(model, model_options)
    except UnsupportedModelError as error:
        if not invariance.on or batch_invariant != "auto":
            raise
        reason = f"the model's logits differ too much with it: {error}"
        invariance = Invariance(False, reason, invariance.report, invariance.threads)
        model_options = _model_options(model, options, invariance)
        checked = checked_model(model, model_options)
    if ranks is not None:
        model_options["chains"] = checked.chains
        parallel = ParallelLM(model, ranks, drafter, options.max_nodes, **model_options)
        return TargetSetup(parallel, invariance)
    settings = options.draft_budget or DEFAULTS
    costs = Costs(checked, invariance.max_rows, options.cost_curve, settings)
    return TargetSetup(
        checked,
        invariance,
        costs,
        DraftBudget(costs.curve, None if costs.given else costs.renew, settings),
        PrefillChunkController(checked.prefill_chunk, settings),
        DraftHeads(checked),
    )


def _set_up_gguf(model: GgufModel, options: TargetOptions) -> TargetSetup:
    """Create the KV cache of a model that llama.cpp runs."""
    from paceline.llama_cpp.exactness import resolve_exactness
    from paceline.llama_cpp.target import GgufTarget

    if options.ranks is not None:
        raise ConfigError(
            "\0lookahead_parallel\0: got ranks and a model in llama.cpp; expected one process. Use"
            " \0engine='transformers'\0."
        )
    threads = torch.get_num_threads()
    exactness = resolve_exactness(model, options.batch_invariant, threads, options.max_batch)
    chunk = options.prefill_chunk or PREFILL_CHUNK
    target = GgufTarget(model, threads, exactness.on, chunk)
    settings = options.draft_budget or DEFAULTS
    costs = Costs(target, None, options.cost_curve, settings)
    return TargetSetup(
        target,
        Invariance(exactness.on, exactness.reason, None, threads),
        costs,
        DraftBudget(costs.curve, None if costs.given else costs.renew, settings),
        PrefillChunkController(chunk, settings),
    )


def _model_options(
    model: PreTrainedModel, options: TargetOptions, invariance: Invariance
) -> dict[str, Any]:
    on_cuda = model.device.type == "cuda"
    default_chunk = PREFILL_CHUNK_ON_CUDA if on_cuda else PREFILL_CHUNK
    model_options = invariance.model_options(options.prefill_chunk or default_chunk)
    return model_options | {"fixed_shapes": options.fixed_shapes}
