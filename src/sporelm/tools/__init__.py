"""Tools for model files, one file each; they return plain data, which `cli` prints."""
