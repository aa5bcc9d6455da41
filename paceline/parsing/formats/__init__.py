"""Parse the formats in which models write tool calls."""
