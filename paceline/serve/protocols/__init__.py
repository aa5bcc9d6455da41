"""Serve the Messages API and the Responses API.

The server converts each request to a chat request, and each answer to the format of the API.
"""
