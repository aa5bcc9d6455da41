"""Implement the command `paceline plan`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from paceline.cli.files import ResultFiles
from paceline.cli.loading import build_llm
from paceline.cli.options import flattened, model_argument, without
from paceline.cli.show import table_console
from paceline.errors import ConfigError
from paceline.plan.hardware import HARDWARE, MEASURED, find_hardware
from paceline.util.options import ModelOptions

if TYPE_CHECKING:
    from paceline.plan.acceptance import Acceptance
    from paceline.plan.planning import Plan


@flattened("Device")
@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """Set the device and the number formats for a plan.

    Attributes:
        dtype: Data type of activations and cache: auto, float32, bfloat16 or float16; 'auto' uses
            the data type in the model's config.
        weight_bits: Number of bits per weight in quantised layers; at least 1. Computations still
            use --dtype. Default: not quantised.
        tensor_parallel: Number of devices across which every matrix is split; at least 1.
        threads: Number of CPU threads that torch uses; from 1 to 1024. The option applies only to
            --hardware measured. Default: chosen by torch.
    """

    hardware: Annotated[
        str,
        Parameter(help=f"Device: {', '.join(HARDWARE)}; or '{MEASURED}' to time this machine."),
    ]
    dtype: str = "auto"
    weight_bits: int | None = None
    tensor_parallel: int = 1
    threads: int | None = None


@flattened("Workload")
@dataclass(frozen=True, slots=True)
class Workload:
    """Set the requests that a plan assumes.

    Attributes:
        batch: Number of requests per forward pass; at least 1.
        context: Number of cached tokens per request; at least 0.
        tokens_per_forward: Source of the mean number of tokens per forward pass at each tree size:
            'chat', 'maths' or 'code' (measured with sssd), or a file. The file contains {"nodes":
            tokens, ...} or the output of `paceline replay --json` for one drafter.
    """

    batch: int = 1
    context: int = 512
    tokens_per_forward: str = "chat"


def plan(
    model: Annotated[
        str,
        model_argument(
            "Target model: directory, config.json or GGUF file; 'demo' and 'smollm2' are built-in"
            " models."
        ),
    ],
    /,
    *,
    device: DeviceOptions,
    workload: Workload = Workload(),
    files: Annotated[ResultFiles, without("markdown")] = ResultFiles(),
) -> None:
    """Estimate the best draft tree size for a device.

    The table shows the time and gain for each draft tree size. The times come from the roofline
    model or are measured on this machine.

    Example: paceline plan smollm2 --hardware h100 --batch 8
    """
    from paceline.plan.acceptance import read_acceptance
    from paceline.plan.report import draw_plan, print_plan, write_plan

    acceptance = read_acceptance(workload.tokens_per_forward)
    if device.hardware == MEASURED:
        if device.weight_bits is not None or device.tensor_parallel != 1:
            raise ConfigError(
                "plan: --weight-bits and --tensor-parallel need a named device. Choose a"
                " --hardware other than 'measured'."
            )
        models = ModelOptions(model, dtype=device.dtype, threads=device.threads)
        result = _measured(models, acceptance, workload)
    else:
        from paceline.plan.config import read_card
        from paceline.plan.named import plan_named

        hardware = find_hardware(device.hardware)
        result = plan_named(
            read_card(model, device.dtype, device.weight_bits),
            hardware,
            acceptance,
            workload.batch,
            workload.context,
            device.tensor_parallel,
        )
    print_plan(result, table_console())
    files.write(partial(write_plan, result), partial(draw_plan, result), lambda picture: "")


def _measured(models: ModelOptions, acceptance: Acceptance, workload: Workload) -> Plan:
    from paceline.model.cached_lm import as_cached_lm
    from paceline.plan.measured import plan_measured

    model = as_cached_lm(build_llm(models, "none").model)
    return plan_measured(model, models.model, acceptance, workload.batch, workload.context)
