"""Token Recycling: the target's own distributions, kept and drafted from."""
