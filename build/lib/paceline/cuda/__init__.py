"""Compute on CUDA with Triton what torch splits into many launches."""
