"""Train draft models, draft heads and acceptance heads.

All three share the training loop, the progress report, the common settings and the code that reads
recorded answers. The folders contain what differs: data preparation, loss and evaluation.
"""
