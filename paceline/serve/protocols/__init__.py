"""Serve the Messages API and the Responses API.

The server converts their requests to chats, and converts the answers back to the API's format.
"""
