"""Matrix products of few rows on the CPU: as fast as their weights can be read, and the same bits for any number of rows."""
