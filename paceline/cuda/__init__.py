"""Run operations in one Triton launch that take torch many launches on CUDA."""
