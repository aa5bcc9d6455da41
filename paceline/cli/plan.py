"""Implement the command `paceline plan`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from paceline.cli.files import ResultFiles
from paceline.cli.loading import build_llm
from paceline.cli.options import without
from paceline.cli.show import table_console
from paceline.errors import ConfigError
from paceline.plan.hardware import HARDWARE, MEASURED, find_hardware
from paceline.util.options import ModelOptions

if TYPE_CHECKING:
    from paceline.plan.acceptance import Acceptance
    from paceline.plan.planning import Plan


def plan(
    model: Annotated[
        str,
        Parameter(
            name="MODEL", help="Model: directory, config.json or GGUF file; 'demo' or 'smollm2'."
        ),
    ],
    /,
    *,
    hardware: Annotated[
        str, Parameter(help=f"Device: {', '.join(HARDWARE)}; '{MEASURED}' measures this machine.")
    ],
    batch: int = 1,
    context: int = 512,
    tokens_per_forward: str = "chat",
    dtype: str = "auto",
    weight_bits: int | None = None,
    tensor_parallel: int = 1,
    threads: int | None = None,
    files: Annotated[ResultFiles, without("markdown")] = ResultFiles(),
) -> None:
    """Estimate the cost and gain of draft trees of every size and show the best size.

    Costs follow the roofline model, or are measured on this machine.

    Args:
        batch: Requests per forward pass.
        context: Cached tokens per request.
        tokens_per_forward: 'chat', 'maths' or 'code' (measured with sssd), or a file: {"nodes":
            tokens, ...} or the output of `paceline replay --json` with one drafter.
        dtype: Data type of activations and cache. Default: "auto", the config's.
        weight_bits: Bits per weight of the layers, if quantised; the arithmetic keeps the dtype.
        tensor_parallel: Number of devices that share every matrix.
        threads: CPU threads of torch, for 'measured'. Default: torch's own choice.
    """
    from paceline.plan.acceptance import read_acceptance
    from paceline.plan.report import draw_plan, print_plan, write_plan

    acceptance = read_acceptance(tokens_per_forward)
    if hardware == MEASURED:
        if weight_bits is not None or tensor_parallel != 1:
            raise ConfigError(
                "plan: weight_bits and tensor_parallel need a named device. Choose another"
                " --hardware than 'measured'."
            )
        result = _measured(
            ModelOptions(model, dtype=dtype, threads=threads), acceptance, batch, context
        )
    else:
        from paceline.plan.config import read_card
        from paceline.plan.named import plan_named

        device = find_hardware(hardware)
        result = plan_named(
            read_card(model, dtype, weight_bits),
            device,
            acceptance,
            batch,
            context,
            tensor_parallel,
        )
    print_plan(result, table_console())
    files.write(partial(write_plan, result), partial(draw_plan, result), lambda picture: "")


def _measured(models: ModelOptions, acceptance: Acceptance, batch: int, context: int) -> Plan:
    from paceline.plan.measured import plan_measured

    return plan_measured(build_llm(models, "none").model, models.model, acceptance, batch, context)
