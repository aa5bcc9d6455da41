"""Ouroboros (Zhao et al. 2024), measured again: tables 1 to 4, figures 3 and 5 (figure 4 is
table 2 on other prompts).
"""
