"""Train and evaluate draft models.

The guide docs/guides/train-a-draft-model.md explains the commands.
"""
