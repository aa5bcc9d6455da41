"""Run matrix products, attention and recurrences on CPUs with compiled kernels."""
