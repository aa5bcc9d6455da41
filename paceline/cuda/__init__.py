"""Fuse operations on CUDA with Triton that torch splits into many launches."""
