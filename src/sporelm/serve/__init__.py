"""`spore serve`: HTTP in front of the engine. `build_app` makes the whole application."""
