"""Train draft heads that predict tokens from the target's hidden states."""
