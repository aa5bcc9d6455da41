"""Write and read recorded answers, and the target's top-k tokens at each position."""
