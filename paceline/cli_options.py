"""Command-line options that several commands share, each written once."""

from __future__ import annotations

from typing import Annotated

import typer

Model = Annotated[str, typer.Option("--model", "-m", help="Directory or hub id; 'demo' is the embedded pair.")]
Draft = Annotated[str | None, typer.Option("--draft-model", "-d", help="Directory or hub id of a draft model.")]
DrafterSpec = Annotated[str, typer.Option("--drafter", help="name:key=value,key=value; see `paceline drafters`.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads of torch; default: torch's own choice.")]
MaxNew = Annotated[int, typer.Option("--max-new-tokens", "-n", help="Most tokens of an answer.")]
Temperature = Annotated[float, typer.Option("--temperature", "-t", help="0 is greedy.")]
TopK = Annotated[int, typer.Option(help="Keep the k most likely tokens; 0 = all.")]
TopP = Annotated[float, typer.Option(help="Keep the most likely tokens up to this probability; 1 = all.")]
MinP = Annotated[float, typer.Option(help="Drop tokens below this share of the most likely one.")]
Penalty = Annotated[float, typer.Option("--repetition-penalty", help="1 = off.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same text.")]
Stop = Annotated[list[str] | None, typer.Option(help="Stop string; may be given several times.")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Go on after an end-of-sequence token.")]
ChatTemplate = Annotated[bool, typer.Option("--chat", help="Wrap each prompt in the chat template.")]
Parallel = Annotated[bool, typer.Option("--lookahead-parallel", help="Share each draft tree among the processes of torchrun.")]
Patience = Annotated[float, typer.Option(min=1, help="Seconds after which a silent process of a parallel run counts as lost.")]


def use_threads(count: int | None) -> None:
    """Set the CPU threads of torch, if the option was given."""
    if count:
        import torch

        torch.set_num_threads(count)
