"""Turn logits into tokens, and tokens into text."""
