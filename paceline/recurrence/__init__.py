"""Run recurrent layers along draft trees: compiled on CPUs, with torch elsewhere."""
