"""Schemas of vision towers in Hugging Face folders, one file each."""
