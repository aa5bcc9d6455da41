"""Define types that many packages share, such as requests and draft trees."""
