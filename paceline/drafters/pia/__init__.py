"""Implement the "Lookahead" framework of PainlessInferenceAcceleration (PIA)."""
