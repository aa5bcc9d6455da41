"""The proof that a token's numbers do not depend on the rest of the forward: made at load, on this
machine, for this model.

Every module that maps rows to rows (products, norms, activations) is tried alone, in the call the
model makes, with row counts from 1 to 1,024; `row_classes` finds the counts that agree bit for bit.
Forwards are then kept inside the widest class that all modules have in common: short ones are
padded, long ones are cut. Attention is a matter of its own (`engine/attention`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel

from paceline.attention import why_not_by_position
from paceline.backend.products import Products, plain_products
from paceline.core.settings import PREFILL_CHUNK
from paceline.errors import ConfigError
from paceline.invariance.forward_cost import forward_cost, padding_cost, pieces_cost
from paceline.invariance.probe_report import ProbeReport, ProbeResult
from paceline.invariance.row_classes import (
    RowClass,
    agreeing_runs,
    fold,
    heavy_tailed,
    widest_class,
)
from paceline.invariance.row_modules import RowModule, survey
from paceline.model.architecture import Architecture
from paceline.model.cached_lm import CachedLM
from paceline.model.model_view import ModelView
from paceline.model.per_layer import layer_values
from paceline.model.quantisation import foreign_weights
from paceline.model.self_check import check_tree_forward, count_differing_rows
from paceline.util import result_cache
from paceline.util.environment_key import environment_key
from paceline.util.options import BatchInvariant
from paceline.util.stopwatch import Conditions

if TYPE_CHECKING:
    from paceline.cpu.product_choice import Trial

COST_ALLOWED = 1.05  # of a forward, by "auto"
MOST_ROWS = 1024  # the largest row count that is tried; no forward is larger

_KIND = "rows-v9"  # another number when what is tried or written changes
_SMALL = tuple(range(1, 17))
_MEDIUM = (17, 24, 31, 32, 33, 48, 63, 65, 96, 127, 129, 257)
_WIDE = (*_SMALL, *_MEDIUM, MOST_ROWS)
_NARROW = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33)  # of products so large that more would take seconds
_ENOUGH = 32  # rows; a narrower class has no room for drafts or a batch
# of every product where no class is wide enough: reading the weights still takes longer than
# multiplying
_FIXED_ROWS = 64
_DRAWS = 24  # of modules that cost next to nothing
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


# proofs that an engine of this process goes by: all others get the same
_used: set[result_cache.ResultKey] = set()


@dataclass(frozen=True, slots=True)
class Invariance:
    """Whether a token's logits depend on its own text alone, to the last bit, and why or why not.

    Attributes:
        reason: a sentence.
        proof: what was found on this machine; None where nothing was tried.
        threads: CPU threads of torch it holds for.
        products: of its forwards; None = those that are fastest.
    """

    on: bool
    reason: str
    proof: ProbeReport | None
    threads: int
    products: Products | None = None

    def check_threads(self) -> None:
        """Refuse another number of threads than it was found for: kernels share rows among them.

        Raises:
            ConfigError: torch has another number now.
        """
        if self.on and torch.get_num_threads() != self.threads:
            raise ConfigError(
                f"threads: got {torch.get_num_threads()}; expected {self.threads}, for which batch"
                " invariance was proven at load. Set them before, or pass batch_invariant=False."
            )

    def model_options(self, prefill_chunk: int) -> dict[str, Any]:
        """Return the options of `CachedLM` that follow; `prefill_chunk` where nothing speaks
        against it.
        """
        chunk = prefill_chunk if self.max_rows is None else min(prefill_chunk, self.max_rows)
        return {
            "prefill_chunk": chunk,
            "batch_invariant": self.on,
            "min_rows": self.min_rows,
            "products": self.products,
        }

    @property
    def min_rows(self) -> int:
        """Rows a forward must have at least."""
        return self.proof.least if self.on and self.proof else 1

    @property
    def max_rows(self) -> int | None:
        """Rows a forward may have at most, before padding to `min_rows` adds to them; None =
        any number.
        """
        return self.proof.most - self.proof.least + 1 if self.on and self.proof else None


def resolve_batch_invariance(
    model: PreTrainedModel, asked: BatchInvariant, sequences: int = 1
) -> Invariance:
    """Decide whether a model is used batch-invariantly.

    Args:
        asked: True, False, or "auto": where the proof says that it costs under 5 %.
        sequences: most of them in one forward.
    Raises:
        UnsupportedModelError: a model that cannot be verified losslessly.
        ConfigError: True was asked for, and it cannot be; or `asked` is none of the three.
    """
    if asked not in (True, False, "auto"):
        raise ConfigError(f"batch_invariant: got {asked!r}; expected True, False or 'auto'.")
    threads = torch.get_num_threads()
    if asked is False:
        return Invariance(False, "it was not asked for", None, threads)
    Architecture.from_model(
        model
    )  # refuses what cannot be decoded here at all, before anything is tried
    proof, products = None, Products()
    obstacle = experts_of(model) or why_not_by_position(model) or _why_not_tried(model, asked)
    if not obstacle:
        try:
            proof, products = _cheapest(model, asked is True)
            obstacle = proof.reason
        except Exception as error:
            # A module of another library, or a kernel that is new to a device, may fail in any way:
            # here, and not in an answer.
            obstacle = (
                f"it was tried on {model.device} and failed: {' '.join(str(error).split())}"
                f" ({type(error).__name__})"
            )
        if proof and not obstacle and proof.most - proof.least + 1 < sequences:
            obstacle = (
                f"rows {proof.least} to {proof.most} agree bit for bit, which is no room for"
                f" max_batch={sequences}"
            )
    if obstacle:
        if asked is True:
            raise ConfigError(f"batch_invariant: got True; {obstacle}. Pass 'auto' or False.")
        return Invariance(False, obstacle, proof, threads)
    assert proof is not None
    said = (
        f"rows {proof.least} to {proof.most} agree bit for"
        f" bit{proof.products and f', {proof.products}'}; products take {proof.cost:.2f} of the"
        f" usual time, and a forward of one row behind a text {proof.whole_cost:.2f}"
    )
    if allowed(proof.conditions) > COST_ALLOWED:
        said += (
            f", timed while other programs disturbed it: up to {allowed(proof.conditions):.2f}"
            f" counts as {COST_ALLOWED:.2f}"
        )
    if asked == "auto" and max(proof.cost, proof.whole_cost) > allowed(proof.conditions):
        return Invariance(
            False,
            f"{said}, and 'auto' allows {COST_ALLOWED:.2f}; True switches it on",
            proof,
            threads,
        )
    return Invariance(True, said, proof, threads, products)


def _why_not_tried(model: PreTrainedModel, asked: BatchInvariant) -> str | None:
    """Return why nothing is tried on a model that could attend by position; None where it is."""
    if asked == "auto" and model.device.type == "cuda":
        return "not tried on CUDA unless batch_invariant=True"
    foreign = foreign_weights(model)
    return foreign and (
        f"{foreign}, and sums over quantised weights, or by another library's code, cannot be tried"
        " alone; expected plain weights in nn.Linear or Conv1D"
    )


def _cheapest(model: PreTrainedModel, with_ours: bool) -> tuple[ProbeReport, Products]:
    """Return the proof with torch's products or with ours, whichever costs less.

    Args:
        model: The model.
        with_ours: Whether to try ours on a small model, too.
    Returns:
        The proof and its products.
    """
    own = _own_products(model, with_ours)
    if own is not None and own[1].cost_everywhere <= allowed(own[1].conditions):
        return _with_trial(prove(model, own[0]), own[1]), own[0]
    proof = prove(model)
    if own is not None and (proof.reason or own[1].cost_everywhere < proof.cost):
        own_proof = _with_trial(prove(model, own[0]), own[1])
        if not own_proof.reason:
            return own_proof, own[0]
    modules = plain_products(model)
    if proof.reason and proof.findings and modules:
        fixed = Products(modules, fixed_rows=_FIXED_ROWS)
        padded = prove(model, fixed)
        if not padded.reason:
            return padded, fixed
    return proof, Products()


def _own_products(model: PreTrainedModel, with_ours: bool) -> tuple[Products, Trial] | None:
    """Return our products and their times; None if ours cannot compute all of the model's."""
    if model.device.type != "cpu":
        return None
    from paceline.cpu import product_choice  # imports the kernels

    own = None
    if with_ours or product_choice.is_large(model):
        own = product_choice.everywhere(model)
    return None if own is None else (own, product_choice.trial(model))


def allowed(conditions: Conditions | None) -> float:
    """Return the highest measured cost with which "auto" switches batch invariance on.

    Under load a measurement may be too high by as much as its repeats are apart. Then the guarantee
    counts more: only a cost that is certainly too high switches it off.
    """
    return (
        COST_ALLOWED
        if conditions is None or conditions.quiet
        else COST_ALLOWED * (1 + conditions.spread)
    )


def _with_trial(proof: ProbeReport, timed: Trial) -> ProbeReport:
    return replace(
        proof, cost=timed.cost_everywhere, conditions=_worst(proof.conditions, timed.conditions)
    )


def _worst(*conditions: Conditions | None) -> Conditions | None:
    return max(
        (one for one in conditions if one is not None),
        key=lambda one: (not one.quiet, one.spread),
        default=None,
    )


def experts_of(model: PreTrainedModel) -> str | None:
    """Return why a mixture of experts cannot be batch-invariant; None for any other model."""
    config = model.config.get_text_config(decoder=True)
    for name in _EXPERTS:
        count = max((one for one in layer_values(config, name) if isinstance(one, int)), default=0)
        if count > 1:
            return (
                f"{model.__class__.__name__} is a mixture of {count} experts ({name}), each of"
                " which sees as many rows as are sent to it, so that padding a forward does not"
                " fix their number; expected a model without experts"
            )
    return None


def prove(model: PreTrainedModel, products: Products = Products()) -> ProbeReport:
    """Find the classes of row counts of a model, or read what was found before on this machine
    in the same circumstances.
    """
    facts = environment_key(
        model, own_products=bool(products.modules), fixed_rows=products.fixed_rows
    )
    place = result_cache.ResultKey(
        _KIND, facts, f"row counts of {model.__class__.__name__}", "proof.json"
    )
    proof = result_cache.load_or_compute(place, lambda: search(model, products), ProbeReport.read)
    if not proof.doubtful or place in _used:
        _used.add(place)
        return proof
    _used.add(place)
    again = search(model, products)
    result_cache.replace(place, again)
    return again


def search(model: PreTrainedModel, products: Products = Products()) -> ProbeReport:
    """Find the classes of row counts of a model.

    Args:
        products: with which it is used.
    """
    begin = time.perf_counter()
    modules, unknown = survey(ModelView(model, products).module)
    findings: list[ProbeResult] = []
    for one in modules:
        try:
            findings.append(_find(one))
        except Exception as error:  # a layer of another library raises what it likes
            unknown = (
                f"{one.name}, a {type(one.module).__name__}, cannot be tried alone:"
                f" {' '.join(str(error).split())}"
            )
            break
    if unknown:
        return ProbeReport(0, 0, 1.0, unknown, (), time.perf_counter() - begin)
    best = widest_class((found.runs for found in findings), _WIDE)
    reason = ""
    if best.most < max(_ENOUGH, 2 * best.least):
        shown = "; ".join(f"{found.name} {', '.join(map(str, found.runs))}" for found in findings)
        reason = (
            f"the widest class of row counts that agree bit for bit is {best.least} to {best.most};"
            f" expected one that is wide enough for a batch. A new class begins at: {shown}"
        )
    if not reason:
        reason = _differs_as_a_whole(model, best, products)
    cost, whole, conditions = 1.0, 1.0, None
    if not reason:
        measured = forward_cost(model, best.least, products, COST_ALLOWED)
        whole, conditions = measured.ratio, measured.conditions
        if products.fixed_rows or best.least > 1:
            measured = (
                pieces_cost(modules) if products.fixed_rows else padding_cost(modules, best.least)
            )
            cost, conditions = measured.ratio, _worst(conditions, measured.conditions)
    seconds = time.perf_counter() - begin
    own = bool(products.modules) and not products.fixed_rows
    return ProbeReport(
        best.least,
        best.most,
        cost,
        reason,
        tuple(findings),
        seconds,
        own,
        whole,
        products.fixed_rows,
        conditions,
    )


def _find(module: RowModule) -> ProbeResult:
    """Try one kind of module: a product on weights that leave the rounding alone, and with its
    bias; others on many rows.
    """
    noise = torch.Generator().manual_seed(0)
    counts = module.counts(_WIDE, (*_SMALL, *_MEDIUM), _NARROW)
    few = tuple(count for count in counts if count <= 33)
    runs: set[int] = set()
    if module.is_product:
        weight, rows = fold(
            module.matrix, heavy_tailed(counts[-1], module.row_shape, module.like, noise), noise
        )
        runs.update(agreeing_runs(module.function(weight), rows, counts))
        plain = [few] if module.has_bias else []
    else:
        plain = [counts, *[few] * _DRAWS]
    for tried in plain:
        rows = heavy_tailed(tried[-1], module.row_shape, module.like, noise)
        runs.update(agreeing_runs(module.function(), rows, tried))
    return ProbeResult(module.name, module.shape, module.times, counts[-1], tuple(sorted(runs)))


def _differs_as_a_whole(model: PreTrainedModel, rows: RowClass, products: Products) -> str:
    """Return what is wrong if forwards within the class still differ; "" if they do not."""
    chunks = (min(PREFILL_CHUNK, rows.most), 8)
    alone, beside = (
        CachedLM(model, chunk, batch_invariant=True, min_rows=rows.least, products=products)
        for chunk in chunks
    )
    if (
        model.device.type != "cpu"
    ):  # a kernel that may never have run there: its values are held against torch's, too
        check_tree_forward(beside)
    differing, count = count_differing_rows(alone, beside)
    if not differing:
        return ""
    return (
        f"{differing} of {count} rows of logits differ in their bits between a text alone and in a"
        " batch, though no module does by itself; it has attention code of its own, or something"
        " in it sums over rows"
    )
