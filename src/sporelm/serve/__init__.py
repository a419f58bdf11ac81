"""`spore serve`: HTTP in front of the engine. `app.build_app` builds the application."""
