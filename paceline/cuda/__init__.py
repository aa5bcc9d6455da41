"""Run operations on CUDA in one Triton launch each, where torch needs many."""
