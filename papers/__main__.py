"""Run the command line `python -m papers NAME`, from the root of the repository."""

from __future__ import annotations

from paceline.cli.main import main
from papers.cli import app

if __name__ == "__main__":
    main(app)
