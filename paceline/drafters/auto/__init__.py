"""One tree from everything that is known."""
