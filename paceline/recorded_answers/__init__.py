"""Write and read files of recorded answers, with the target's top-k tokens.

`writing.py` starts or continues a file, and `reading.py` reads it. `lines.py` handles the
checksums of the lines, and `top_tokens.py` the file with the target's top-k tokens at each
position.
"""

from paceline.recorded_answers.lines import RecordedAnswer
from paceline.recorded_answers.reading import read_answers, read_settings, read_tops

__all__ = ["RecordedAnswer", "read_answers", "read_settings", "read_tops"]
