"""Speed of the whole engine, with the machine's limits and a peer's speed measured in the same run."""

from sporelm.bench.bench_rows import BenchRow
from sporelm.bench.driver import BenchCase, build_cases, choose_context, measure_cases
from sporelm.bench.peer import LlamaPeer, open_peer
from sporelm.bench.synthetic import is_synthetic, synthetic_file

__all__ = [
    "BenchCase",
    "BenchRow",
    "LlamaPeer",
    "build_cases",
    "choose_context",
    "is_synthetic",
    "measure_cases",
    "open_peer",
    "synthetic_file",
]
