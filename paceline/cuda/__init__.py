"""Fuse, with Triton, operations that torch splits into many launches on CUDA."""
