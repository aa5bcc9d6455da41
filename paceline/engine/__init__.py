"""One decoding step, and what keeps it running. Imports nothing: trees, sequences and the
contract need no torch.
"""
