"""Parse tool calls in the formats of various model families."""
