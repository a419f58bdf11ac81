"""One file per architecture: a typed configuration where the usual one does not do, and a forward pass from blocks."""
