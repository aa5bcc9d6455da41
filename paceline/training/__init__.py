"""Train draft models, draft heads and acceptance heads.

This package contains what all three kinds of training share: the loop, the progress report, the
common settings and the code that reads recorded answers. The folders contain what differs: data
preparation, loss and evaluation.
"""
