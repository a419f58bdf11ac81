"""Tiny models of every family: one entry puts a configuration through all tests of tests/models/test_families.py.

A file for each group of families; each has its `CASES`.
"""

from importlib import import_module
from pkgutil import iter_modules

from families.case import POSITIONS, TOKENS, Case, write_case
from families.seeing import WHOLE

_GROUPS = sorted(module.name for module in iter_modules(__path__) if module.name != "case")
EVERY: tuple[Case, ...] = tuple(case for group in _GROUPS for case in import_module(f"families.{group}").CASES)
CASES = tuple(case for case in EVERY if not case.reads)
ENCODERS = tuple(case for case in EVERY if case.reads)

__all__ = ["CASES", "ENCODERS", "EVERY", "POSITIONS", "TOKENS", "WHOLE", "Case", "write_case"]
