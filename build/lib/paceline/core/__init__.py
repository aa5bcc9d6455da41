"""Define the types that all packages share, such as requests and draft trees."""
