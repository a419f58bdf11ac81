"""`serve` uses the public methods of `api`; it does not reach into the engine behind them."""

import ast

import pytest

from architecture.sources import PACKAGE, python_files, relative, sources

SERVE = PACKAGE / "serve"
# Attributes of `LLM`, `AsyncLLM` and their parts that hold the engine and what is below it.
INTERNALS = {"engine", "engine_thread", "loaded_engine", "scheduler", "runner", "worker", "kv_cache", "request"}
OWN_ATTRIBUTES = {  # the same names on objects of `serve`
    "engine": ("config", "server.config", "self.config", "call.server.config"),
    "request": ("call", "self", "job"),
}
FORBIDDEN_PACKAGES = ("engine", "ops", "plan", "distributed")


def reaches(tree: ast.AST) -> list[tuple[int, str]]:
    """Line and expression of each attribute that belongs to the engine."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in INTERNALS:
            owner = ast.unparse(node.value)
            if owner not in OWN_ATTRIBUTES.get(node.attr, ()):
                found.append((node.lineno, f"{owner}.{node.attr}"))
    return found


def test_serve_does_not_reach_into_the_engine() -> None:
    offenders = [
        f"{relative(path)}:{line}: {text}"
        for path in python_files(SERVE)
        for line, text in reaches(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not offenders, f"add a method to sporelm.api instead: {offenders}"


def test_serve_does_not_import_the_engine() -> None:
    offenders = [
        f"{relative(file.path)}:{each.line}: {each.module}"
        for file in sources(SERVE)
        for each in file.imports
        if each.module.split(".")[:2] in [["sporelm", package] for package in FORBIDDEN_PACKAGES]
    ]
    assert not offenders, f"import from sporelm.api instead: {offenders}"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("model.llm.engine.scheduler.waiting", ["model.llm.engine", "model.llm.engine.scheduler"]),
        ("answer.request.scores", ["answer.request"]),
        ("llm.engine_thread.cancel(answer)", ["llm.engine_thread"]),
        ("call.server.config.engine.get('kv')", []),
        ("self.request.headers", []),
    ],
)
def test_the_rule_itself(code: str, expected: list[str]) -> None:
    assert sorted(text for _, text in reaches(ast.parse(code))) == expected
