"""Hold the compiled CPU kernels."""
