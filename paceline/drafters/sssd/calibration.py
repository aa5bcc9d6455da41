"""Load and save the calibration of `sssd`: the weights of its scoring network."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.drafters.sssd.features import FEATURES, HIDDEN, WEIGHTS
from paceline.errors import ConfigError
from paceline.util.files import digest_of, parse_json, write_atomically

SHIPPED = Path(__file__).parent / "calibration.json"
VERSION = 1
_FORMAT = "paceline sssd calibration"


@dataclass(frozen=True, slots=True)
class Calibration:
    """Hold the weights of the scoring network.

    Attributes:
        weights: [WEIGHTS] in the order of `network`; inputs are not scaled.
        about: What the weights were fitted on, and how well.
    """

    weights: NDArray[np.float32]
    about: dict[str, Any]

    def save(self, path: str | Path) -> None:
        """Write the calibration to a file atomically.

        Raises:
            ConfigError: The file cannot be written.
        """
        content = {
            "format": _FORMAT,
            "version": VERSION,
            "inputs": list(FEATURES),
            "hidden": HIDDEN,
            "about": self.about,
        }
        content["weights"] = base64.b64encode(self.weights.astype("<f4").tobytes()).decode()
        content["sha256"] = digest_of(content)
        write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())

    @classmethod
    def load(cls, path: str | Path | None = None) -> Calibration:
        """Read a calibration; None reads the one of the package.

        Raises:
            ConfigError: The file is missing, damaged, or of another kind or version.
        """
        path = SHIPPED if path is None else Path(path)
        try:
            content = parse_json(path.read_bytes())
        except OSError as error:
            raise ConfigError(
                f"calibration {str(path)!r}: got {error}; expected a file that can be read. Fit"
                " one: paceline replay --fit FILE."
            ) from error
        except ValueError as error:
            raise ConfigError(_broken(path)) from error
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ConfigError(_broken(path))
        if (
            content.get("version") != VERSION
            or content.get("inputs") != list(FEATURES)
            or content.get("hidden") != HIDDEN
        ):
            raise ConfigError(
                f"calibration {str(path)!r}: got version {content.get('version')!r} and"
                f" {len(content.get('inputs', ()))} inputs; expected version {VERSION} and the"
                f" {len(FEATURES)} inputs of this release. Fit it again: paceline replay --fit"
                " FILE."
            )
        if content.pop("sha256", None) != digest_of(content):
            raise ConfigError(_broken(path))
        weights = np.frombuffer(base64.b64decode(content["weights"]), dtype="<f4").astype(
            np.float32
        )
        if weights.shape != (WEIGHTS,) or not np.isfinite(weights).all():
            raise ConfigError(_broken(path))
        return cls(weights, content["about"])


def _broken(path: Path) -> str:
    return (
        f"calibration {str(path)!r}: got a file that is damaged or no calibration; expected a sound"
        " one. Fit it again: paceline replay --fit FILE."
    )
