"""Vocabulary conversion: from GGUF metadata to the files of a Hugging Face folder, and back."""
