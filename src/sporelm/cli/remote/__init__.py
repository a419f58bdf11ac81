"""The client of another server: what `spore chat --url` talks through. It imports nothing of the engine."""
