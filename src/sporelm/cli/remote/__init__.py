"""The client of `spore chat --url`, which imports nothing of the engine; `spore bench serve` shares its address."""
