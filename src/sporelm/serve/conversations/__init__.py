"""Stored conversations of the web chat, and the background jobs that write answers into them."""
