"""Endpoints that convert other protocols to chats and back."""
