"""Tokenizers out of one kind of file into the other: metadata of GGUF files, and the files of Hugging Face folders."""
