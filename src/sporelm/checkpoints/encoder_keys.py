"""What schemas of encoders share: labels of heads, and what a GGUF file's tensors tell."""

from collections.abc import Mapping


def count_rows(shapes: Mapping[str, tuple[int, ...]], name: str) -> int:
    """Return the rows of a stored matrix; 0 if there is none."""
    shape = shapes.get(name, ())
    return shape[0] if len(shape) == 2 else 0
