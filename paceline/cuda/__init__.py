"""Compute in one Triton launch what torch splits into many launches on CUDA."""
