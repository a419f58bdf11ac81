"""Schemas of vision towers in mmproj GGUF files, one file each."""
