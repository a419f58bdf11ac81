"""Image processors, one file for each family of models that see."""
