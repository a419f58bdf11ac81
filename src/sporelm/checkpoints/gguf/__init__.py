"""Schemas of GGUF files, one module per family of models."""
