"""Training of foresight: what follows the newest token, from the target's hidden state
(`paceline.draft_head`).
"""
