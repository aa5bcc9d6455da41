"""Prove that logits do not depend on the rest of the batch."""
