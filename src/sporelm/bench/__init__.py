"""Speed of the whole engine, beside the limits of the machine and the figures of a peer, all from one run."""

from sporelm.bench.driver import Case, cases, measure
from sporelm.bench.peer import LlamaPeer
from sporelm.bench.rows import Row

__all__ = ["Case", "LlamaPeer", "Row", "cases", "measure"]
