"""Check at load time that no row of a forward pass depends on other rows.

Modules from other libraries may quantise activations with a scale that is computed from all rows
of the forward pass, or may quantise only if there are many rows. Draft tokens would then change
the logits of other tokens. Names and configurations do not reveal such behaviour, so the check
runs the modules themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from transformers import PreTrainedModel

from paceline.errors import UnsupportedModelError
from paceline.model.forward_mode import mode_of
from paceline.model.quantisation import foreign_modules
from paceline.model.settings import (
    HALF_TOLERANCE,
    LOUD_ROW,
    ROW_CHECK_COUNTS,
    ROW_CHECK_TOKENS,
    ROW_COUNT_TOLERANCE,
)


def check_rows(model: PreTrainedModel) -> None:
    """Check that rows do not affect each other in a model's modules and logits.

    Models without modules from other libraries are not checked. Models whose logits are NaN or
    infinite are not checked either, because each of their requests ends with an error. The check
    takes about eight short forward passes.

    Args:
        model: Model to check; it is not modified.
    Raises:
        UnsupportedModelError: A row depends on other rows, or the model cannot run the check.
    """
    modules = {module: name for name, module in foreign_modules(model)}
    if not modules:
        return
    probe = _ModuleProbe(modules)
    try:
        with mode_of(model)():
            with _hook(register_module_forward_hook, probe.after):
                quiet = _logits(model)
            with _hook(register_module_forward_pre_hook, _make_loud):
                loud = _logits(model)
    except Exception as error:  # modules of another library may raise any type
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot be checked for rows that depend on one another:"
            f" {reason}. Use model.generate for this model."
        ) from error
    if not quiet.amax(dim=-1).isfinite().all():
        return
    finding = probe.finding
    if not finding and not (change := _largest_change(quiet, loud)) <= HALF_TOLERANCE:
        finding = f"the logits change by {change:.2g} of the largest one {_LOUD}"
    if finding:
        raise UnsupportedModelError(
            f"{type(model).__name__}: rows of a forward pass depend on one another, so drafts would"
            f" change answers: {finding}. The activations are probably quantised with a scale over"
            " all rows, as in LLM.int8(). Load the model without it; quantised weights and one"
            " scale per token are supported."
        )


_LOUD = "when another row's activations are much larger"


class _ModuleProbe:
    """Calls each module again with different rows, right after the model's call.

    Args:
        modules: Modules to check, with their names.
    Attributes:
        finding: How the first failing module depends on other rows; "" if no module failed.
    """

    def __init__(self, modules: dict[nn.Module, str]) -> None:
        self.finding = ""
        self._names = modules
        self._kinds: set[tuple[object, ...]] = set()
        self._busy = False

    def after(self, module: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        """Check whether each row of a module's output depends on other rows.

        Modules without one row per token are skipped; the check of the logits covers them.
        """
        name = self._names.get(module)
        if name is None or self._busy or self.finding or len(given) != 1:
            return
        if not _has_rows(given[0]) or not isinstance(output, Tensor):
            return
        rows = given[0].detach().reshape(2 * ROW_CHECK_TOKENS, -1)
        kind = (type(module), type(module._parameters.get("weight")), rows.shape, output.shape)
        counts = ROW_CHECK_COUNTS[-1:] if kind in self._kinds else ROW_CHECK_COUNTS
        self._kinds.add(kind)
        self._busy = True
        try:
            self.finding = _dependence(module, rows, given[0].dim(), counts)
        except Exception:  # the module accepts only inputs that the model prepares
            return
        finally:
            self._busy = False
        if self.finding:
            self.finding = f"the outputs of {name} ({_kind_of(module)}) {self.finding}"


def _dependence(module: nn.Module, rows: Tensor, dims: int, counts: tuple[int, ...]) -> str:
    """Describe how rows of a module's output depend on each other; "" if they do not.

    Args:
        module: Module that maps rows to rows.
        rows: Rows that the model passed to the module, [n, size].
        dims: Number of dimensions of the module's input. With 3 dimensions, each row is passed as
            a sequence of one token.
        counts: Row counts to try, each at least 2.
    """

    def outputs(given: Tensor) -> Tensor:
        result: Tensor = module(given if dims == 2 else given.unsqueeze(1))
        return result.reshape(len(given), -1).float()

    alone = outputs(rows[:1])[0]
    for count in counts:
        quiet_rows = rows[torch.arange(count, device=rows.device) % len(rows)]
        quiet = outputs(quiet_rows)
        loud = outputs(torch.cat([quiet_rows[:-1], _loud_row(quiet_rows)]))
        if not _equal(quiet[:-1], loud[:-1]):
            change = _largest_change(quiet[:-1], loud[:-1])
            # If a kernel adds numbers in a varying order, even identical calls differ.
            repeats = _equal(quiet, outputs(quiet_rows))
            if repeats or not change <= ROW_COUNT_TOLERANCE:
                return f"change by {change:.2g} of the largest one {_LOUD}"
        difference = _mean_change(alone, quiet[0])
        if not difference <= ROW_COUNT_TOLERANCE:
            return (
                f"with {count} rows differ by {difference:.2g} from those with one row (rounding"
                f" allows {ROW_COUNT_TOLERANCE:g})"
            )
    return ""


def _logits(model: PreTrainedModel) -> Tensor:
    """Return the first text's logits [tokens, vocab] from a pass over two texts."""
    vocab = model.config.get_text_config(decoder=True).vocab_size
    ids = (7 * torch.arange(2 * ROW_CHECK_TOKENS) + 3) % vocab
    texts = ids.view(2, ROW_CHECK_TOKENS).to(model.device)
    return cast(Tensor, model(input_ids=texts, use_cache=False).logits)[0].float()


def _make_loud(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Scale the second text's activations far above those of the first text.

    If the first text's results then change, its rows depend on other rows.
    """
    if not given or not _has_rows(given[0]):
        return None
    rows = given[0].reshape(2, ROW_CHECK_TOKENS, -1)
    loud = _loud_row(rows[0]).expand_as(rows[:1])
    return (torch.cat([rows[:1], loud]).reshape(given[0].shape), *given[1:])


def _loud_row(rows: Tensor) -> Tensor:
    """Return a row [1, size] whose values are much larger than those of `rows`."""
    size = float(rows.abs().amax()) * LOUD_ROW or LOUD_ROW
    limit = min(size, torch.finfo(rows.dtype).max / 8)
    return torch.linspace(-limit, limit, rows.shape[-1], device=rows.device).to(rows.dtype)[None]


def _has_rows(value: Any) -> bool:
    """Return whether a module's input has one row per token of the two test texts."""
    return (
        isinstance(value, Tensor)
        and value.dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)
        and value.shape[:-1] in ((2, ROW_CHECK_TOKENS), (2 * ROW_CHECK_TOKENS,))
    )


def _equal(result: Tensor, other: Tensor) -> bool:
    return not bool(_differences(result, other).any())


def _largest_change(result: Tensor, other: Tensor) -> float:
    """Return the largest absolute difference between two results.

    The difference is divided by the largest finite absolute value of `result`.
    """
    scale = float(result[result.isfinite()].abs().max()) if result.isfinite().any() else 0.0
    return float(_differences(result, other).abs().max()) / max(scale, 1e-30)


def _mean_change(result: Tensor, other: Tensor) -> float:
    """Return the root mean square difference between two results.

    The difference is divided by the root mean square of the finite values of `result`.
    """
    finite = result[result.isfinite()]
    scale = float(finite.square().mean().sqrt()) if len(finite) else 0.0
    return float(_differences(result, other).square().mean().sqrt()) / max(scale, 1e-30)


def _differences(result: Tensor, other: Tensor) -> Tensor:
    """Return `result - other`; 0 where both are NaN or the same infinity."""
    # Padded vocabularies have logits of -inf.
    same = (result == other) | (result.isnan() & other.isnan())
    return torch.where(same, 0.0, result - other)


def _kind_of(module: nn.Module) -> str:
    weight = module._parameters.get("weight")
    kinds = [type(module), *([] if weight is None else [type(weight)])]
    return ", weight ".join(f"{kind.__module__}.{kind.__name__}" for kind in kinds)


@contextmanager
def _hook(register: Callable[..., Any], function: Callable[..., Any]) -> Iterator[None]:
    """Call a function for every module that this thread runs in the `with` block.

    The modules are not modified.
    """
    thread = threading.get_ident()

    def run(*given: Any) -> Any:
        return function(*given) if threading.get_ident() == thread else None

    handle = register(run)
    try:
        yield
    finally:
        handle.remove()
