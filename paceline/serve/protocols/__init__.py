"""Provide endpoints for other protocols, which are converted to chats and back."""
