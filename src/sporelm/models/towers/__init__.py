"""Vision towers with their projectors, one file each."""
