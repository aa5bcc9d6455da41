"""Define the types that all rooms share: requests, draft trees, outcomes, drafters."""
