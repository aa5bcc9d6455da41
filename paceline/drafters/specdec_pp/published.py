"""Read heads in the format of the authors' SpecDec++ code.

A head consists of config.json, with `hidden_size` and `num_layers`, and model.safetensors. In the
authors' code, all D blocks are the same module (a list multiplied by D). A checkpoint stores the
tensors of this module D times under different keys, or only once if duplicates are omitted. In both
cases, this module gives every block a separate copy.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import safetensors
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from paceline.drafters.specdec_pp.card import HeadCard, new_card
from paceline.drafters.specdec_pp.settings import MAX_BLOCKS
from paceline.errors import ConfigError
from paceline.util.files import parse_json

_WEIGHTS, _PICKLE, _CONFIG = "model.safetensors", "pytorch_model.bin", "config.json"


def is_published(folder: Path, card: str) -> bool:
    """Return whether `folder` holds a head in the SpecDec++ authors' format.

    Such a folder contains no file whose name is the value of `card`.
    """
    return not (folder / card).exists() and (folder / _CONFIG).exists()


def read_published(folder: Path, draft: PreTrainedModel) -> tuple[HeadCard, dict[str, Tensor]]:
    """Read the card and the tensors of a head in the SpecDec++ authors' format.

    Raises:
        ConfigError: The file is pickled or damaged or has another format, or the head does not
            fit the draft model's hidden size.
    """
    where = str(folder)
    if not (folder / _WEIGHTS).exists() and (folder / _PICKLE).exists():
        raise ConfigError(
            f"head {where!r}: got a pickled file ({_PICKLE}), which can run code when it is read;"
            f" expected {_WEIGHTS}. Save it as that where it is trusted."
        )
    try:
        config = parse_json((folder / _CONFIG).read_bytes())
        hidden_size, depth = int(config["hidden_size"]), int(config.get("num_layers", 0))
        tensors = load_file(folder / _WEIGHTS)
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        safetensors.SafetensorError,
    ) as error:
        raise ConfigError(
            f"head {where!r}: got files that cannot be read: {error}; expected a published head."
            " Download it again."
        ) from error
    card = replace(new_card("", draft.config._name_or_path, draft, depth), recipe={"source": where})
    if hidden_size != card.hidden_size:
        raise ConfigError(
            f"head {where!r}: got a draft model with hidden size {card.hidden_size}; expected"
            f" {hidden_size}, as it was trained for. Use its own draft model, or train a head for"
            " this one (paceline head)."
        )
    return card, _untied(tensors, depth, where)


def _untied(stored: dict[str, Tensor], depth: int, where: str) -> dict[str, Tensor]:
    """Return the tensors of a published head, named as in `AcceptanceHead`.

    If the file does not contain a block, the block gets a copy of the tensors of the first block in
    the file.
    """
    blocks = sorted(
        {
            int(match[1])
            for name in stored
            if (match := re.fullmatch(r"model\.(\d+)\.linear\.weight", name))
        }
    )
    last = f"model.{depth}"
    if (
        not 0 <= depth <= MAX_BLOCKS
        or f"{last}.weight" not in stored
        or bool(blocks) != bool(depth)
        or any(b >= depth for b in blocks)
    ):
        raise ConfigError(
            f"head {where!r}: got {', '.join(sorted(stored))}; expected {depth} residual blocks"
            f" 'model.I.linear' as its config says, 0 to {MAX_BLOCKS}, and the last layer"
            " 'model.D'. Download it again."
        )
    tensors = {"last.weight": stored[f"{last}.weight"], "last.bias": stored.get(f"{last}.bias")}
    for block in range(depth):
        source = block if block in blocks else blocks[0]
        for part in ("weight", "bias"):
            tensors[f"blocks.{block}.{part}"] = stored.get(f"model.{source}.linear.{part}")
    return {name: tensor.float().clone() for name, tensor in tensors.items() if tensor is not None}
