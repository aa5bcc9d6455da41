"""Draft models that read the target's hidden states, in the style of EAGLE.

EAGLE: Li et al. 2024. EAGLE-3: Li et al. 2025. GLIDE: Du et al. 2024.
"""
