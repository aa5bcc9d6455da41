"""Parse reasoning and tool calls in answers while they are being generated."""
