"""Ground floor: options, files that appear whole, compiled kernels."""
