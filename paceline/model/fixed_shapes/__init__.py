"""Run decode passes in a few fixed shapes, with captured graphs on CUDA."""
