"""Train and evaluate draft models.

docs/guides/train-a-draft-model.md explains how.
"""
