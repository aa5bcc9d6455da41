"""Write and read files of recorded answers, with the target's top-k tokens.

`writing.py` starts or continues a file, and `reading.py` reads it. `lines.py` computes and verifies
the checksums of the lines. `top_tokens.py` handles the file with the target's top-k tokens at each
position.
"""

from paceline.recorded_answers.lines import RecordedAnswer
from paceline.recorded_answers.reading import read_answers, read_settings, read_tops

__all__ = ["RecordedAnswer", "read_answers", "read_settings", "read_tops"]
