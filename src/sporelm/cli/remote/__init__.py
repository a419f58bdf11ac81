"""The client of another server: what `spore chat --url` talks through. Of it `spore bench serve` has its
address and its key. It imports nothing of the engine."""
