"""Draft with an EAGLE-3, DFlash or MTP head, from the target's hidden states."""
