"""Load published heads that draft from the target's hidden states."""
