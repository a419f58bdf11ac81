"""Calls in Python's syntax, name(argument="value"), parsed and never executed."""

import ast
import json
import warnings
from collections.abc import Mapping

from sporelm.text.dialects.dialect import ParserState
from sporelm.text.dialects.stream_source import Steps
from sporelm.text.dialects.tool import Tool

MAX_CODE_CHARACTERS = 1 << 16  # characters of a block of code
MAX_END_MARKERS = 16  # markers of the end inside of a block, in its texts


def read_python_calls(state: ParserState, ends: tuple[str, ...]) -> Steps[bool]:
    """Read all calls up to an end marker or the end of the text; False if there is anything else.

    They are emitted when the block is complete. A marker inside a string argument does not end it.
    """
    parts: list[str] = []
    for _ in range(MAX_END_MARKERS):
        marker = yield from state.source.until(ends, parts.append)
        calls = parse_calls("".join(parts), state.tools)
        for name, arguments in calls:
            state.begin(name)
            state.writer.arguments(arguments)
            state.writer.end_call(True)
        if calls or marker is None:
            return bool(calls)
        parts.append(marker)
    return False


def parse_calls(text: str, tools: Mapping[str, Tool]) -> list[tuple[str, str]]:
    """Return names and JSON arguments of a text of Python calls; empty if it is anything else."""
    if len(text) > MAX_CODE_CHARACTERS:
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes such as "\\d": the text comes from a model
            statements = ast.parse(text.strip()).body
        return [_call(each, tools) for statement in statements for each in _flatten_list(statement)]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return []


def _flatten_list(statement: ast.stmt) -> list[ast.stmt]:
    """Return the statements that a statement stands for: the elements of a list."""
    parts = statement.value if isinstance(statement, ast.Expr) else None
    return [ast.Expr(part) for part in parts.elts] if isinstance(parts, ast.List | ast.Tuple) else [statement]


def _call(statement: ast.stmt, tools: Mapping[str, Tool]) -> tuple[str, str]:
    """Return the call of a statement: alone, printed or assigned. Raises ValueError or TypeError for anything else."""
    call = statement.value if isinstance(statement, ast.Expr | ast.Assign) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print":
        call = call.args[0] if len(call.args) == 1 and not call.keywords else None
    if not isinstance(call, ast.Call):
        raise ValueError("no call")
    tool = tools.get(ast.unparse(call.func)) or tools.get(ast.unparse(call.func).removesuffix(".call"))
    if tool is None:
        raise ValueError("the name is not that of a tool")
    named = list(tool.parameters.get("properties") or {})
    if len(call.args) > len(named) or any(keyword.arg is None for keyword in call.keywords):
        raise ValueError("arguments without a name")
    given = dict(zip(named, call.args, strict=False)) | {str(each.arg): each.value for each in call.keywords}
    values = {name: ast.literal_eval(value) for name, value in given.items()}
    return tool.name, json.dumps(values, ensure_ascii=False, allow_nan=False)
