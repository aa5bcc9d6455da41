"""Compute a model's operations with torch or with compiled kernels.

`Backend` is the interface, and `TorchBackend` is the default. The kernels for CPUs are in
the package `paceline.cpu`, which is imported only when an operation needs these kernels.
"""
