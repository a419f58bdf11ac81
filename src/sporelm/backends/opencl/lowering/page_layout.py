"""The options and snippets of kernels that read or write pages of keys and values."""

from typing import Any

from sporelm.ops.spec import spec_of


def make_page_options(cache: Any) -> dict[str, Any]:
    """Return the macros of a cache's pages: HEAD_DIM, and the numbers of a head that are loaded at once."""
    head_dim = int(spec_of(cache).bound[4])
    return {"HEAD_DIM": head_dim, "HEAD_VEC": head_vector(head_dim)}


def has_even_heads(cache: Any) -> bool:
    """Return whether the heads of a cache can be loaded as vectors."""
    return int(spec_of(cache).bound[4]) % 2 == 0


def head_vector(head_dim: int) -> int:
    """Return the greatest vector of at most 16 numbers that divides a head."""
    return next(size for size in (16, 8, 4, 2) if head_dim % size == 0)


def list_page_snippets(cache: Any) -> list[str]:
    """Return the files that load and store rows of a cache's type."""
    return ["pages.h", f"pages/{spec_of(cache).dtype.name.lower()}.h"]
