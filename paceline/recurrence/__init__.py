"""Run recurrences along draft trees, compiled on CPUs and with torch elsewhere."""
