"""Schedule the requests of many callers, and decode them in shared steps."""
