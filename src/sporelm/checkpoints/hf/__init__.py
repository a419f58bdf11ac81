"""Schemas of Hugging Face folders, one module per family of models; a schema has the name of its transformers class."""
