"""Run decode forward passes with a few fixed shapes; on CUDA, as captured graphs."""
