"""Draft with a published head, from the target's hidden states."""
