"""Element types, layouts (shape and stride arithmetic), and tensors that carry both with their device."""
