"""Define the types that all rooms share, such as requests and draft trees."""
