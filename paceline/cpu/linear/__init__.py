"""Matrix products of few rows on the CPU, as fast as their weights can be read; norms. The same
bits for any number of rows.
"""
