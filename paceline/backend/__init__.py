"""Compute operations with torch, or with compiled kernels that replace it.

`Backend` is the interface, and `TorchBackend` is the default. `paceline.cpu` has kernels for CPUs;
it is imported only when a model or logits on a CPU need them.
"""
