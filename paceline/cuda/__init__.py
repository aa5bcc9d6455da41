"""Reduce the number of CUDA launches.

One Triton launch computes a whole RMS norm, for which torch needs several launches. CUDA graphs
repeat captured functions, each in one launch.
"""
