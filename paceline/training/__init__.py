"""Train draft models, draft heads and acceptance heads.

All three share the training loop, its report, the settings and the reading of recorded answers.
The folders hold what differs: data preparation, loss and evaluation.
"""
