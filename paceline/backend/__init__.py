"""Compute the operations that compiled kernels may replace.

`Backend` is the interface, and `TorchBackend` is the default. `paceline.cpu` has kernels for CPUs;
it is imported only when a model or logits on a CPU need them.
"""
