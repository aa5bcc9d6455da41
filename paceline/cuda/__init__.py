"""Run CUDA operations in one Triton launch each; torch needs many launches."""
