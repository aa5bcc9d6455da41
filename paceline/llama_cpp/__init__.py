"""Run GGUF files with llama.cpp instead of torch."""
