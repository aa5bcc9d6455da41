"""Sample tokens from logits, and convert streamed tokens to text."""
