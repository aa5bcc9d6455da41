"""Reproduce Lookahead Decoding (Fu et al., ICML 2024): figure 4, tables 3 and 6."""
