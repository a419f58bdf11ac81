"""One file per architecture: its typed configuration, if it has fields of its own, and a forward pass from blocks."""
