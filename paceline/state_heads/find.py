"""Find a draft head by its folder or hub id."""

from __future__ import annotations

from paceline.errors import ConfigError
from paceline.state_heads.dflash import DFlashHead
from paceline.state_heads.eagle3 import Eagle3Head
from paceline.state_heads.files import HeadFiles
from paceline.state_heads.head import StateHead
from paceline.state_heads.mtp import MtpHead

MTP = "mtp"  # Name of the MTP layer in the target's checkpoint.


def find_head(source: str) -> StateHead:
    """Create the head that a source names; the caller must attach it to the target.

    Args:
        source: Folder or hub id of an EAGLE-3 or DFlash head; or "mtp" for the MTP layer in the
            target's checkpoint.
    Raises:
        ConfigError: The head does not exist, or its architecture is unknown.
    """
    if source == MTP:
        return MtpHead()
    files = HeadFiles.find(source)
    kind = str(files.config.get("speculators_model_type", ""))
    architectures = [str(name) for name in files.config.get("architectures") or ()]
    if kind == "eagle3" or any("Eagle3" in name for name in architectures):
        return Eagle3Head(files)
    if kind == "dflash" or "dflash_config" in files.config:
        return DFlashHead(files)
    named = kind or ", ".join(architectures) or "no kind"
    raise ConfigError(
        f"state head {source!r}: got a {named}; expected an EAGLE-3 or DFlash head. Choose one"
        " that was trained for this model."
    )
