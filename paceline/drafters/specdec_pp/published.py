"""Read heads in the format of the authors' SpecDec++ code.

A head consists of two files: model.safetensors, and config.json, which contains `hidden_size` and
`num_layers`. In the authors' code, all D blocks are the same module (a list multiplied by D). A
checkpoint stores the tensors of this module D times under different keys, or only once if
duplicates are omitted. In both cases, the loaded head gets a separate copy of the tensors for every
block.
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
    """Return whether a folder contains a head in the format of the SpecDec++ authors.

    Args:
        folder: Folder of the head.
        card: Name of the card file, which only heads in this package's format contain.
    """
    return not (folder / card).exists() and (folder / _CONFIG).exists()


def read_published(folder: Path, draft: PreTrainedModel) -> tuple[HeadCard, dict[str, Tensor]]:
    """Read the card and the tensors of a head in the SpecDec++ authors' format.

    Args:
        folder: Folder of the head.
        draft: Draft model in use.
    Raises:
        ConfigError: The file is pickled or damaged, has a different format, or does not match the
            draft model's hidden size.
    """
    where = str(folder)
    if not (folder / _WEIGHTS).exists() and (folder / _PICKLE).exists():
        raise ConfigError(
            f"head {where!r}: got a pickled file ({_PICKLE}), which can run code when it is read;"
            f" expected {_WEIGHTS}. Convert it where it is trusted."
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
    """Rename the tensors of a published head to the names that `AcceptanceHead` uses.

    If the file omits a block, the block gets a copy of the first stored block's tensors.

    Args:
        stored: Tensors in the file, by name.
        depth: Number of residual blocks.
        where: Folder of the head, for error messages.
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
            f" 'model.I.linear' (as in config.json; at most {MAX_BLOCKS}), and the last layer"
            " 'model.D'. Download it again."
        )
    tensors = {"last.weight": stored[f"{last}.weight"], "last.bias": stored.get(f"{last}.bias")}
    for block in range(depth):
        source = block if block in blocks else blocks[0]
        for part in ("weight", "bias"):
            tensors[f"blocks.{block}.{part}"] = stored.get(f"model.{source}.linear.{part}")
    return {name: tensor.float().clone() for name, tensor in tensors.items() if tensor is not None}
