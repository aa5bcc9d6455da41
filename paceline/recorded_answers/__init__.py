"""Write and read files of recorded answers, and of the target's top-k tokens.

`writing.py` starts or continues a file of recorded answers, and `reading.py` reads such a file.
`lines.py` computes and verifies the checksums of the lines. An optional second file contains the
target's top-k tokens at each position of the answers; `top_tokens.py` writes and reads this file.
"""

from paceline.recorded_answers.lines import RecordedAnswer
from paceline.recorded_answers.reading import read_answers, read_settings, read_tops

__all__ = ["RecordedAnswer", "read_answers", "read_settings", "read_tops"]
