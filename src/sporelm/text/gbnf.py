"""GBNF, llama.cpp's grammar format: parse it, so that `gbnf_lark` can write it as llguidance's Lark.

Source of the syntax: llama.cpp, `grammars/README.md` and `src/llama-grammar.cpp`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from sporelm.errors import RequestError, shown
from sporelm.text.grammar_text import checked_text

MAX_LENGTH = 1 << 16  # characters of a grammar
MAX_RULES = 256
MAX_NESTING = 32  # groups inside each other
MAX_REPETITIONS = 2000  # as llama.cpp has it
MAX_CHARACTER = 0x10FFFF

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_COUNTS = re.compile(r"\{[ \t]*([0-9]{1,9})[ \t]*(?:(,)[ \t]*([0-9]{1,9})?[ \t]*)?\}")
_TOKEN = re.compile(r"!?<[^>\n]*>?")
_HEX = {"x": 2, "u": 4, "U": 8}
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]"}


@dataclass(frozen=True)
class Chars:
    """A character class: sorted, disjoint ranges of code points."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Rule:
    """A reference to a rule, and the line on which it stands."""

    name: str
    line: int = field(compare=False, default=0)


@dataclass(frozen=True)
class Sequence:
    """A concatenation; without nodes, the empty text."""

    nodes: "tuple[Node, ...]"


@dataclass(frozen=True)
class Choice:
    """An alternation."""

    nodes: "tuple[Node, ...]"


@dataclass(frozen=True)
class Repeat:
    """A repetition, `low` to `high` times; high None is unbounded."""

    node: "Node"
    low: int
    high: int | None


@dataclass(frozen=True)
class Terminal:
    """A regular node as one lexeme, which matches all its texts but the empty one. The parser creates none."""

    node: "Node"


Node = Chars | Rule | Sequence | Choice | Repeat | Terminal
EMPTY = Sequence(())


def parse_gbnf(given: object) -> dict[str, Node]:
    """Return the rules of a GBNF grammar by their names, `root` among them.

    Raises RequestError, which names the line, for what is malformed or not supported.
    """
    text = checked_text("grammar", given)
    if len(text) > MAX_LENGTH:
        length = f"got {len(text)} characters; allowed: {MAX_LENGTH}"
        raise RequestError(f"grammar: too long ({length}). Simplify it, or write it in Lark")
    rules = _Parser(text).rules()
    if "root" not in rules:
        raise RequestError("grammar: the rule root is missing. Define it as the start rule.")
    for node in rules.values():
        for each in inside(node):
            if isinstance(each, Rule) and each.name not in rules:
                raise RequestError(f"grammar, line {each.line}: undefined rule {shown(each.name)}")
    return rules


def inside(node: Node) -> Iterator[Node]:
    """Yield a node and all nodes in it."""
    waiting = [node]
    while waiting:
        each = waiting.pop()
        yield each
        if isinstance(each, Sequence | Choice):
            waiting += each.nodes
        elif isinstance(each, Repeat):
            waiting.append(each.node)


def merged(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return ranges of code points in ascending order, those that touch as one."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return tuple(found)


def complement(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Return the ranges of all other code points."""
    found, start = [], 0
    for low, high in ranges:
        if start < low:
            found.append((start, low - 1))
        start = high + 1
    return tuple(found) if start > MAX_CHARACTER else (*found, (start, MAX_CHARACTER))


class _Parser:
    """Recursive descent over the text, as llama.cpp's own parser goes."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self._counted, self._newlines = 0, 0  # up to where the ends of lines are counted, and how many there are

    def rules(self) -> dict[str, Node]:
        found: dict[str, Node] = {}
        self._space(newlines=True)
        while self.at < len(self.text):
            name = self._name("a rule name")
            if name in found:
                self._fail(f"the rule {shown(name)} is defined twice")
            if len(found) == MAX_RULES:
                raise RequestError(f"grammar: too many rules (allowed: {MAX_RULES})")
            self._space()
            if not self.text.startswith("::=", self.at):
                self._fail(f"::= is missing after {shown(name)}")
            self.at += 3
            self._space(newlines=True)
            found[name] = self._choice(0)
            if self._peek() not in ("", "\r", "\n"):
                self._fail(f"unexpected {shown(self._peek())}")
            self._space(newlines=True)
        return found

    def _choice(self, depth: int) -> Node:
        nodes = [self._sequence(depth)]
        while self._peek() == "|":
            self.at += 1
            self._space(newlines=True)
            nodes.append(self._sequence(depth))
        return nodes[0] if len(nodes) == 1 else Choice(tuple(nodes))

    def _sequence(self, depth: int) -> Node:
        nodes: list[Node] = []
        while (node := self._item(depth)) is not None:
            self._space(newlines=depth > 0)
            if (counts := self._counts()) is not None:
                node = Repeat(node, *counts)
                self._space(newlines=depth > 0)
                if self._peek() in ("*", "+", "?", "{"):
                    self._fail(f"{shown(self._peek())} follows another repetition. Put the first one in parentheses")
            nodes.append(node)
        return nodes[0] if len(nodes) == 1 else Sequence(tuple(nodes))

    def _item(self, depth: int) -> Node | None:
        sign = self._peek()
        if sign == '"':
            return self._literal()
        if sign == "[":
            return self._characters()
        if sign == "(":
            if depth == MAX_NESTING:
                self._fail(f"groups are nested more than {MAX_NESTING} deep")
            self.at += 1
            self._space(newlines=True)
            found = self._choice(depth + 1)
            if self._peek() != ")":
                self._fail(") is missing")
            self.at += 1
            return found
        if sign == ".":
            self.at += 1
            return Chars(((0, MAX_CHARACTER),))
        if sign in ("<", "!") and (token := _TOKEN.match(self.text, self.at)):
            self._fail(f"token references are not supported (got {shown(token[0])}). Write the characters")
        if sign in ("*", "+", "?", "{"):
            self._fail(f"nothing to repeat before {shown(sign)}")
        name = _NAME.match(self.text, self.at)
        if name is None:
            return None
        line = self.line
        return Rule(self._name("a rule"), line)

    def _counts(self) -> tuple[int, int | None] | None:
        """The lowest and the highest count of a repetition that stands here."""
        simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        sign = self._peek()
        if sign in simple:
            self.at += 1
            return simple[sign]
        if sign != "{":
            return None
        found = _COUNTS.match(self.text, self.at)
        if found is None:
            self._fail("malformed repetition (allowed: {n}, {n,}, {n,m})")
        low = int(found[1])
        high = low if found[2] is None else None if found[3] is None else int(found[3])
        if max(low, high or 0) > MAX_REPETITIONS:
            self._fail(f"too many repetitions (got {found[0]}; allowed: {MAX_REPETITIONS})")
        if high is not None and high < low:
            self._fail(f"the minimum of {found[0]} is above its maximum")
        self.at = found.end()
        return low, high

    def _literal(self) -> Node:
        self.at += 1
        codes = []
        while self._peek() != '"':
            codes.append(self._character('"'))
        self.at += 1
        nodes = tuple(Chars(((code, code),)) for code in codes)
        return nodes[0] if len(nodes) == 1 else Sequence(nodes)

    def _characters(self) -> Node:
        self.at += 1
        negated = self._peek() == "^"
        self.at += negated
        ranges: list[tuple[int, int]] = []
        while self._peek() != "]":
            low = high = self._character("]")
            if self._peek() == "-" and self.text[self.at + 1 : self.at + 2] != "]":
                self.at += 1
                high = self._character("]")
            if high < low:
                self._fail(f"the range {chr(low)!r} to {chr(high)!r} is in reverse order")
            ranges.append((low, high))
        self.at += 1
        found = complement(merged(ranges)) if negated else merged(ranges)
        if not found:
            self._fail("empty character class")
        return Chars(found)

    def _character(self, end: str) -> int:
        """The code point of the character or escape that stands here."""
        sign = self._peek()
        if sign == "":
            self._fail(f"{end} is missing")
        self.at += 1
        if sign != "\\":
            return ord(sign)
        kind = self._peek()
        self.at += 1
        if kind in _HEX:
            digits = self.text[self.at : self.at + _HEX[kind]]
            if len(digits) < _HEX[kind] or not re.fullmatch("[0-9A-Fa-f]+", digits):
                self._fail(f"\\{kind} needs {_HEX[kind]} hexadecimal digits")
            code = int(digits, 16)
            if code > MAX_CHARACTER or 0xD800 <= code <= 0xDFFF:
                self._fail(f"\\{kind}{digits} is not a Unicode character")
            self.at += _HEX[kind]
            return code
        if kind not in _ESCAPES or not kind:
            self._fail(f"unknown escape \\{kind}")
        return ord(_ESCAPES[kind])

    def _name(self, what: str) -> str:
        found = _NAME.match(self.text, self.at)
        if found is None:
            self._fail(f"expected {what} (got {shown(self.text[self.at : self.at + 20])})")
        self.at = found.end()
        return found[0]

    def _space(self, *, newlines: bool = False) -> None:
        """Skip spaces and comments, with `newlines` the ends of lines too."""
        skipped = re.compile(r"(?:[ \t\r\n]+|#[^\r\n]*)*" if newlines else r"(?:[ \t]+|#[^\r\n]*)*")
        found = skipped.match(self.text, self.at)
        assert found is not None  # it matches the empty text
        self.at = found.end()

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    @property
    def line(self) -> int:
        """The number of the line that is being read."""
        self._newlines += self.text.count("\n", self._counted, self.at)
        self._counted = max(self._counted, self.at)
        return self._newlines + 1

    def _fail(self, what: str) -> NoReturn:
        raise RequestError(f"grammar, line {self.line}: {what}")
