"""Run recurrences through draft trees, compiled on CPUs and with torch elsewhere."""
