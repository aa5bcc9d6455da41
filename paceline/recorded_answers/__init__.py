"""Write and read files of recorded answers, with the target's top-k tokens.

`writing.py` starts or continues a file of recorded answers, and `reading.py` reads such a file.
`lines.py` computes and verifies the checksums of the lines. A second file can hold the target's
top-k tokens at each position of the answers; `top_tokens.py` writes and reads this file.
"""

from paceline.recorded_answers.lines import RecordedAnswer
from paceline.recorded_answers.reading import read_answers, read_settings, read_tops

__all__ = ["RecordedAnswer", "read_answers", "read_settings", "read_tops"]
