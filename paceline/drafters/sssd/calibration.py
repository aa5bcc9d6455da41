"""Load the weights of the scoring network for `fusion=calibrated`.

The weights are part of the package. They were fitted with log loss (Adam, 24 epochs) to candidate
tokens that `sssd` had proposed for 560 recorded answers. Three models wrote the answers: one to
chat prompts, one to maths problems, and one to class-completion tasks. `calibration.json` lists the
data sets and the loss.
"""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.drafters.sssd.features import FEATURES, WEIGHTS
from paceline.drafters.sssd.settings import HIDDEN
from paceline.errors import ConfigError
from paceline.util.files import digest_of, parse_json

WEIGHTS_FILE = Path(__file__).parent / "calibration.json"


def load_weights(path: Path = WEIGHTS_FILE) -> NDArray[np.float32]:
    """Load the weights of the scoring network, in the order that `network.py` expects.

    The network's inputs are not normalised.

    Returns:
        Weights, float32 [WEIGHTS].
    Raises:
        ConfigError: The file is missing, damaged, or belongs to a different release.
    """
    try:
        content = parse_json(path.read_bytes())
        is_sound = (
            content.pop("sha256") == digest_of(content)
            and content["inputs"] == list(FEATURES)
            and content["hidden"] == HIDDEN
        )
        weights = np.frombuffer(base64.b64decode(content["weights"]), dtype="<f4")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(_broken(path)) from error
    if not is_sound or weights.shape != (WEIGHTS,):
        raise ConfigError(_broken(path))
    return weights.astype(np.float32)


def _broken(path: Path) -> str:
    return f"The weights of sssd, {str(path)!r}, are damaged or missing. Install paceline again."
