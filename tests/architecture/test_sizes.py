"""Small files, short functions, names that say something."""

import ast
from pathlib import Path

import pytest

from architecture.sources import PACKAGE, TESTS, python_files, relative, tree_of

SOURCE_LINES = 400
TEST_LINES = 600
MODEL_LINES = 120
FUNCTION_LINES = 60
KERNEL_LINES = 120
VAGUE = {"util", "utils", "common", "helper", "helpers", "misc", "base", "manager", "managers", "core", "stuff"}

# Longer than allowed, with the reason.
EXCEPTIONS: dict[str, str] = {"src/sporelm/models/families/__init__.py": "the list of families, a line or two for each"}


@pytest.mark.parametrize("path", python_files(PACKAGE) + python_files(TESTS), ids=relative)
def test_file_size(path: Path) -> None:
    place = relative(path)
    limit = TEST_LINES if place.startswith("tests/") else SOURCE_LINES
    if path.parent == PACKAGE / "models" / "families" and path.stem != "__init__":  # the list, a line or two a family
        limit = MODEL_LINES
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= limit or place in EXCEPTIONS, (
        f"{place} has {lines} lines, at most {limit}: cut it where the subject changes"
    )


@pytest.mark.parametrize("path", python_files(PACKAGE), ids=relative)
def test_function_size(path: Path) -> None:
    limit = KERNEL_LINES if {"kernels", "formats"} & set(path.relative_to(PACKAGE).parts) else FUNCTION_LINES
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= limit, f"{relative(path)}:{node.lineno} {node.name} has {lines} lines, at most {limit}"


@pytest.mark.parametrize("path", python_files(PACKAGE) + python_files(TESTS), ids=relative)
def test_names_say_something(path: Path) -> None:
    parts = [*path.relative_to(PACKAGE.parents[1]).parent.parts, path.stem]
    vague = VAGUE & {word for part in parts for word in part.removeprefix("test_").split("_")}
    assert not vague, f"{relative(path)} is named after {vague}: name the thing that is in it"


def test_exceptions_are_needed() -> None:
    for place, reason in EXCEPTIONS.items():
        assert reason
        assert (PACKAGE.parents[1] / place).is_file(), f"{place} is gone: take it off the list"
