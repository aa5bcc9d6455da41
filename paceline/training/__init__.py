"""Train draft models, draft heads and acceptance heads.

The modules of this package contain what all training commands share: the training loop, the
progress report, common settings and the code that reads recorded answers. The subpackages contain
what differs: data preparation, loss and evaluation.
"""
