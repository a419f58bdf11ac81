"""The server's models by name: loaded on demand, unloaded when memory or time runs out."""
