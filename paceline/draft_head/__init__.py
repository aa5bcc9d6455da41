"""What the target may say next, read off its hidden state: a guess before its next forward."""
