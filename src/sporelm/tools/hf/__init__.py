"""Hugging Face folders into GGUF files, and back."""
