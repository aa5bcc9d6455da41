"""Draft with a published head that reads the target's hidden states."""
