"""Speed of the whole engine, beside the limits of the machine and the figures of a peer, all from one run."""

from sporelm.bench.driver import Case, cases, context_for, measure
from sporelm.bench.peer import LlamaPeer
from sporelm.bench.rows import Row
from sporelm.bench.synthetic import is_synthetic, synthetic_file

__all__ = ["Case", "LlamaPeer", "Row", "cases", "context_for", "is_synthetic", "measure", "synthetic_file"]
