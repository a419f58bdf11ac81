"""Models on disk: file formats, names and the model store; from names on disk to tensors."""
