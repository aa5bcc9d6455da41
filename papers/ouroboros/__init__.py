"""Reproduce Ouroboros (Zhao et al. 2024): tables 1 to 4, figures 3 and 5.

Figure 4 of the paper shows the results of table 2 on other prompts.
"""
