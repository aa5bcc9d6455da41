"""Compute operations with torch, or with compiled kernels that replace it.

`Backend` is the interface, and `TorchBackend` is the default. The kernels for CPUs are in
`paceline.cpu`, which is imported only when a model or logits on a CPU need these kernels.
"""
