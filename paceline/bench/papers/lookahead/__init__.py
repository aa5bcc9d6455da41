"""Lookahead Decoding (Fu et al., ICML 2024), measured again: figure 4, table 3 and table 6."""
