"""The command `paceline plan`: what drafting can bring for a model on a machine, and with how
many nodes.
"""

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
        Parameter(name="MODEL", help="directory, config.json or GGUF file; 'demo' or 'smollm2'."),
    ],
    /,
    *,
    hardware: Annotated[
        str, Parameter(help=f"one of {', '.join(HARDWARE)}; or '{MEASURED}': this machine.")
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
    """Show what trees of every size cost and bring, and the best size, by the roofline or as
    measured on this machine.

    Args:
        batch: sequences in a forward.
        context: cached tokens of each.
        tokens_per_forward: 'chat', 'maths' or 'code', measured with sssd; or a file: of `paceline
            replay --json` with one drafter, or {"nodes": tokens, ...}.
        dtype: of activations and cache; "auto" = the config's.
        weight_bits: of each weight of the layers, where it is fewer than the dtype's; the
            arithmetic stays.
        tensor_parallel: devices that share every matrix.
        threads: CPU threads of torch, for 'measured'.
    """
    from paceline.plan.acceptance import read_acceptance
    from paceline.plan.report import draw_plan, print_plan, write_plan

    acceptance = read_acceptance(tokens_per_forward)
    if hardware == MEASURED:
        if weight_bits is not None or tensor_parallel != 1:
            raise ConfigError(
                "plan: hardware: got 'measured' with weight_bits or tensor_parallel; expected"
                " none. Name a device."
            )
        found = _measured(
            ModelOptions(model, dtype=dtype, threads=threads), acceptance, batch, context
        )
    else:
        from paceline.plan.config import read_card
        from paceline.plan.named import plan_named

        device = find_hardware(hardware)
        found = plan_named(
            read_card(model, dtype, weight_bits),
            device,
            acceptance,
            batch,
            context,
            tensor_parallel,
        )
    print_plan(found, table_console())
    files.write(partial(write_plan, found), partial(draw_plan, found), lambda picture: "")


def _measured(models: ModelOptions, acceptance: Acceptance, batch: int, context: int) -> Plan:
    from paceline.plan.measured import plan_measured

    return plan_measured(build_llm(models, "none").model, models.model, acceptance, batch, context)
