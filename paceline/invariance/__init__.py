"""Check that a token's logits do not depend on the rest of the batch."""
