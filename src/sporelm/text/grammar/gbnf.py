"""Parser of GBNF, llama.cpp's grammar format; `gbnf_to_lark` translates the result to llguidance's Lark.

Source of the syntax: llama.cpp, `grammars/README.md` and `src/llama-grammar.cpp`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from sporelm.errors import RequestError, safe_repr
from sporelm.text.grammar.grammar_checks import check_grammar_text

MAX_CHARACTERS = 1 << 16  # of a grammar
MAX_GBNF_RULES = 256
MAX_GROUP_DEPTH = 32  # nested groups
MAX_REPETITIONS = 2000  # llama.cpp's limit
MAX_CHARACTER = 0x10FFFF

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_COUNTS = re.compile(r"\{[ \t]*([0-9]{1,9})[ \t]*(?:(,)[ \t]*([0-9]{1,9})?[ \t]*)?\}")
_TOKEN = re.compile(r"!?<[^>\n]*>?")
_HEX = {"x": 2, "u": 4, "U": 8}
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]"}


@dataclass(frozen=True)
class CharacterClass:
    """A character class: sorted, disjoint ranges of code points."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class RuleReference:
    """A reference to a rule, and its line."""

    name: str
    line: int = field(compare=False, default=0)


@dataclass(frozen=True)
class Concatenation:
    """A concatenation; without nodes, the empty text."""

    nodes: "tuple[Node, ...]"


@dataclass(frozen=True)
class Alternation:
    """An alternation."""

    nodes: "tuple[Node, ...]"


@dataclass(frozen=True)
class Repetition:
    """A repetition, `low` to `high` times; high None is unbounded."""

    node: "Node"
    low: int
    high: int | None


@dataclass(frozen=True)
class Lexeme:
    """A regular node as one lexeme, which matches all its texts except the empty one. The translation creates them."""

    node: "Node"


Node = CharacterClass | RuleReference | Concatenation | Alternation | Repetition | Lexeme
EMPTY = Concatenation(())


def parse_gbnf(grammar: object) -> dict[str, Node]:
    """Return the rules of a GBNF grammar by their names, `root` among them.

    Raises RequestError, which names the line, for a malformed or unsupported grammar.
    """
    text = check_grammar_text("grammar", grammar)
    if len(text) > MAX_CHARACTERS:
        length = f"got {len(text)} characters; allowed: {MAX_CHARACTERS}"
        raise RequestError(f"grammar: too long ({length}). Simplify it, or write it in Lark")
    rules = _GbnfParser(text).parse()
    if "root" not in rules:
        raise RequestError("grammar: the rule root is missing. Define it as the start rule.")
    for node in rules.values():
        for inner in walk(node):
            if isinstance(inner, RuleReference) and inner.name not in rules:
                raise RequestError(f"grammar, line {inner.line}: undefined rule {safe_repr(inner.name)}")
    return rules


def walk(node: Node) -> Iterator[Node]:
    """Yield a node and all nodes in it."""
    stack = [node]
    while stack:
        inner = stack.pop()
        yield inner
        if isinstance(inner, Concatenation | Alternation):
            stack += inner.nodes
        elif isinstance(inner, Repetition):
            stack.append(inner.node)


def merge_ranges(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return ranges of code points in ascending order; overlapping and adjacent ones are joined."""
    result: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if result and low <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(result[-1][1], high))
        else:
            result.append((low, high))
    return tuple(result)


def complement(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Return the ranges of all other code points."""
    result = []
    start = 0
    for low, high in ranges:
        if start < low:
            result.append((start, low - 1))
        start = high + 1
    return tuple(result) if start > MAX_CHARACTER else (*result, (start, MAX_CHARACTER))


class _GbnfParser:
    """A recursive-descent parser, like llama.cpp's own."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self._counted_to = 0  # position up to which line breaks are counted
        self._num_newlines = 0

    def parse(self) -> dict[str, Node]:
        rules: dict[str, Node] = {}
        self._skip_space(newlines=True)
        while self.position < len(self.text):
            name = self._parse_name("a rule name")
            if name in rules:
                self._fail(f"the rule {safe_repr(name)} is defined twice")
            if len(rules) == MAX_GBNF_RULES:
                raise RequestError(f"grammar: too many rules (allowed: {MAX_GBNF_RULES})")
            self._skip_space()
            if not self.text.startswith("::=", self.position):
                self._fail(f"::= is missing after {safe_repr(name)}")
            self.position += 3
            self._skip_space(newlines=True)
            rules[name] = self._parse_alternation(0)
            if self._peek() not in ("", "\r", "\n"):
                self._fail(f"unexpected {safe_repr(self._peek())}")
            self._skip_space(newlines=True)
        return rules

    def _parse_alternation(self, depth: int) -> Node:
        nodes = [self._parse_concatenation(depth)]
        while self._peek() == "|":
            self.position += 1
            self._skip_space(newlines=True)
            nodes.append(self._parse_concatenation(depth))
        return nodes[0] if len(nodes) == 1 else Alternation(tuple(nodes))

    def _parse_concatenation(self, depth: int) -> Node:
        nodes: list[Node] = []
        while (node := self._parse_item(depth)) is not None:
            self._skip_space(newlines=depth > 0)
            if (counts := self._parse_counts()) is not None:
                node = Repetition(node, *counts)
                self._skip_space(newlines=depth > 0)
                if self._peek() in ("*", "+", "?", "{"):
                    self._fail(
                        f"{safe_repr(self._peek())} follows another repetition. Put the first one in parentheses"
                    )
            nodes.append(node)
        return nodes[0] if len(nodes) == 1 else Concatenation(tuple(nodes))

    def _parse_item(self, depth: int) -> Node | None:
        sign = self._peek()
        if sign == '"':
            return self._parse_literal()
        if sign == "[":
            return self._parse_character_class()
        if sign == "(":
            if depth == MAX_GROUP_DEPTH:
                self._fail(f"groups are nested more than {MAX_GROUP_DEPTH} deep")
            self.position += 1
            self._skip_space(newlines=True)
            group = self._parse_alternation(depth + 1)
            if self._peek() != ")":
                self._fail(") is missing")
            self.position += 1
            return group
        if sign == ".":
            self.position += 1
            return CharacterClass(((0, MAX_CHARACTER),))
        if sign in ("<", "!") and (token := _TOKEN.match(self.text, self.position)):
            self._fail(f"token references are not supported (got {safe_repr(token[0])}). Write the characters")
        if sign in ("*", "+", "?", "{"):
            self._fail(f"nothing to repeat before {safe_repr(sign)}")
        name = _NAME.match(self.text, self.position)
        if name is None:
            return None
        line = self.line
        return RuleReference(self._parse_name("a rule"), line)

    def _parse_counts(self) -> tuple[int, int | None] | None:
        """Parse a repetition, if there is one here: its lowest and its highest count."""
        simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        sign = self._peek()
        if sign in simple:
            self.position += 1
            return simple[sign]
        if sign != "{":
            return None
        match = _COUNTS.match(self.text, self.position)
        if match is None:
            self._fail("malformed repetition (allowed: {n}, {n,}, {n,m})")
        low = int(match[1])
        high = low if match[2] is None else None if match[3] is None else int(match[3])
        if max(low, high or 0) > MAX_REPETITIONS:
            self._fail(f"too many repetitions (got {match[0]}; allowed: {MAX_REPETITIONS})")
        if high is not None and high < low:
            self._fail(f"the minimum of {match[0]} is above its maximum")
        self.position = match.end()
        return low, high

    def _parse_literal(self) -> Node:
        self.position += 1
        codes = []
        while self._peek() != '"':
            codes.append(self._parse_character('"'))
        self.position += 1
        nodes = tuple(CharacterClass(((code, code),)) for code in codes)
        return nodes[0] if len(nodes) == 1 else Concatenation(nodes)

    def _parse_character_class(self) -> Node:
        self.position += 1
        negated = self._peek() == "^"
        self.position += negated
        ranges: list[tuple[int, int]] = []
        while self._peek() != "]":
            low = high = self._parse_character("]")
            if self._peek() == "-" and self.text[self.position + 1 : self.position + 2] != "]":
                self.position += 1
                high = self._parse_character("]")
            if high < low:
                self._fail(f"the range {chr(low)!r} to {chr(high)!r} is in reverse order")
            ranges.append((low, high))
        self.position += 1
        characters = complement(merge_ranges(ranges)) if negated else merge_ranges(ranges)
        if not characters:
            self._fail("empty character class")
        return CharacterClass(characters)

    def _parse_character(self, end: str) -> int:
        """Parse a character or an escape: its code point."""
        sign = self._peek()
        if sign == "":
            self._fail(f"{end} is missing")
        self.position += 1
        if sign != "\\":
            return ord(sign)
        kind = self._peek()
        self.position += 1
        if kind in _HEX:
            digits = self.text[self.position : self.position + _HEX[kind]]
            if len(digits) < _HEX[kind] or not re.fullmatch("[0-9A-Fa-f]+", digits):
                self._fail(f"\\{kind} needs {_HEX[kind]} hexadecimal digits")
            code = int(digits, 16)
            if code > MAX_CHARACTER or 0xD800 <= code <= 0xDFFF:
                self._fail(f"\\{kind}{digits} is not a Unicode character")
            self.position += _HEX[kind]
            return code
        if kind not in _ESCAPES or not kind:
            self._fail(f"unknown escape \\{kind}")
        return ord(_ESCAPES[kind])

    def _parse_name(self, expected: str) -> str:
        match = _NAME.match(self.text, self.position)
        if match is None:
            self._fail(f"expected {expected} (got {safe_repr(self.text[self.position : self.position + 20])})")
        self.position = match.end()
        return match[0]

    def _skip_space(self, *, newlines: bool = False) -> None:
        """Skip spaces and comments; with `newlines`, line breaks too."""
        skipped = re.compile(r"(?:[ \t\r\n]+|#[^\r\n]*)*" if newlines else r"(?:[ \t]+|#[^\r\n]*)*")
        match = skipped.match(self.text, self.position)
        assert match is not None  # it matches the empty text
        self.position = match.end()

    def _peek(self) -> str:
        return self.text[self.position : self.position + 1]

    @property
    def line(self) -> int:
        """The number of the current line."""
        self._num_newlines += self.text.count("\n", self._counted_to, self.position)
        self._counted_to = max(self._counted_to, self.position)
        return self._num_newlines + 1

    def _fail(self, problem: str) -> NoReturn:
        raise RequestError(f"grammar, line {self.line}: {problem}")
