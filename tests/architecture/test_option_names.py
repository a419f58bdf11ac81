"""Messages below the command line name options as Python does; the command line turns them into flags."""

import ast
import re
from collections.abc import Iterator
from inspect import signature
from pathlib import Path

import pytest

from architecture.sources import PACKAGE, python_files, relative
from sporelm import LLM, SamplingParams
from sporelm.cli.main import load_command

BELOW = ("api", "engine", "checkpoints", "models", "plan", "backends", "distributed", "ops", "quant", "tensor")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
OPTION = re.compile(r"\bthe option ([a-z_]+)")
COMMAND = re.compile(r"'spore [^']*'")


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Return line and text of each string literal of a file, without docstrings; an f-string is one text."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        if id(node) in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            yield node.lineno, "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def messages() -> Iterator[tuple[str, str]]:
    """Return place and text of each literal of the layers below the command line."""
    for layer in BELOW:
        for path in python_files(PACKAGE / layer):
            yield from ((f"{relative(path)}:{line}", text) for line, text in texts(path))
    yield from ((f"errors.py:{line}", text) for line, text in texts(PACKAGE / "errors.py"))


def test_no_message_below_the_command_line_names_a_flag() -> None:
    wrong = [f"{place}: {found[0]}" for place, text in messages() if (found := FLAG.search(COMMAND.sub("", text)))]
    assert not wrong, 'say "the option max_context", not its flag:\n' + "\n".join(wrong)


def test_each_option_is_an_argument_and_a_flag() -> None:
    calls = signature(LLM).parameters, signature(LLM.embed).parameters
    arguments = {*SamplingParams.__dataclass_fields__}.union(*calls)
    flags = {flag for name in ("run", "embed") for flag in load_command(name).make_parser()._option_string_actions}
    found = [(place, name) for place, text in messages() for name in OPTION.findall(text)]
    assert {"max_context", "kv_memory", "strict", "roll"} <= {name for _, name in found}
    wrong = [
        f"{place}: {name}"
        for place, name in found
        if name not in arguments or f"--{name.replace('_', '-')}" not in flags
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ('"""Read --kv."""\nx = "give --kv"', ["give --kv"]),
        ('raise E(f"give {x} " "--kv")', ["give {} --kv"]),
    ],
)
def test_literals_are_found(tmp_path: Path, code: str, expected: list[str]) -> None:
    path = tmp_path / "module.py"
    path.write_text(code)
    assert [text for _, text in texts(path)] == expected
