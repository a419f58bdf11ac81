"""The functions that compiled kernels may take from each system."""

from sporelm.backends.cpu.jit.compiler import WINDOWS_SYMBOLS
from unit.backends.cpu.other_machines import (
    WINDOWS_COFF,
)


def expected(triple: str) -> set[str]:
    """List the symbols that a kernel may import; the loader finds them in the system's libraries."""
    found = {"memset"}
    if "apple" in triple:
        found.add("bzero")
    if "windows" in triple:
        found |= WINDOWS_SYMBOLS.keys()
    if triple == WINDOWS_COFF:
        found.add("_fltused")  # a mark of the linker: one reason why objects on Windows are ELF
    return found
