"""Convert logits to tokens, and tokens to text."""
