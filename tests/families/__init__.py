"""Tiny models of every family: one entry puts a configuration through all tests of tests/models/test_families.py.

A file for each group of families; each has its `CASES`.
"""

from importlib import import_module
from pkgutil import iter_modules

from families.case import POSITIONS, TOKENS, Case, write_case

_GROUPS = sorted(module.name for module in iter_modules(__path__) if module.name != "case")
CASES: tuple[Case, ...] = tuple(case for group in _GROUPS for case in import_module(f"families.{group}").CASES)

__all__ = ["CASES", "POSITIONS", "TOKENS", "Case", "write_case"]
