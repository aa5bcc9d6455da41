"""Run decode passes in a few fixed shapes, on CUDA as captured graphs."""
