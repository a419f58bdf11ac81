"""Translates GBNF into an equivalent grammar in llguidance's Lark.

GBNF is a grammar over characters. llguidance first splits a text into lexemes by longest match, so `[a-z]+ "b"` with a
lexeme for each part would match nothing: the first lexeme consumes the "b". So a part without recursion becomes one
lexeme only if longest match loses no text: after a text of lexeme x, no lexeme y may be able to continue with a
character that can also follow x. Otherwise y is split, if necessary into single characters, which never conflict.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from operator import or_

from sporelm.errors import RequestError
from sporelm.text.grammar.gbnf import (
    EMPTY,
    Alternation,
    CharacterClass,
    Concatenation,
    Lexeme,
    Node,
    Repetition,
    RuleReference,
    complement,
    merge_ranges,
    parse_gbnf,
    walk,
)
from sporelm.text.grammar.grammar_checks import check_grammar_text

MAX_LEXEME_NODES = 2000  # of a lexeme, with the rules in it inlined
MAX_LEXEME_DEPTH = 100
MAX_INLINED_NODES = 50_000  # of all rules that are inlined; others stay rules
MAX_COMPARED_PAIRS = 200_000  # of positions of lexemes, which takes some tenths of a second
MAX_VISITED_NODES = 200_000  # to find the characters that may follow lexemes; that takes as long
MAX_CLASS_RANGES = 400  # of a character class written as it is; larger ones are usually written negated
TOO_LARGE = "grammar: too large and ambiguous to translate. Simplify it, or write it in Lark"
ANY_CHARACTER = "(?s:.)"  # line breaks included

Ranges = tuple[tuple[int, int], ...]


def gbnf_as_lark(grammar: object) -> str:
    """Return a GBNF grammar as Lark. Raises RequestError, which names the line, if it is not supported."""
    return _translate(check_grammar_text("grammar", grammar))


@lru_cache(maxsize=16)
def _translate(text: str) -> str:
    rules = parse_gbnf(text)
    try:
        inliner = _RuleInliner(rules)
        parts = _select_used({name: _form_lexemes(_inline(node, inliner)) for name, node in rules.items()})
        comparison = _LexemeComparison()
        while conflicting := comparison.find_conflicts(_compute_following(parts, comparison)):
            parts = {name: _split_lexemes(part, conflicting) for name, part in parts.items()}
        return _write_lark(parts)
    except RecursionError:
        raise RequestError("grammar: nested too deeply") from None


# ---- lexemes: parts without recursion, with the rules in them inlined


class _RuleInliner:
    """Inlines rules that are not recursive, and small."""

    def __init__(self, rules: Mapping[str, Node]) -> None:
        self.rules = rules
        self.nodes: dict[str, Node] = {}
        self.sizes: dict[str, tuple[int, int] | None] = {}  # nodes and depth; None: cannot be inlined
        self._in_progress: set[str] = set()
        self._num_inlined = 0

    def inline(self, name: str) -> Node | None:
        """Return the rule to inline; None if it cannot be inlined."""
        size = self.get_size(name)
        if size is None or self._num_inlined + size[0] > MAX_INLINED_NODES:
            return None
        self._num_inlined += size[0]
        if name not in self.nodes:
            self.nodes[name] = _inline(self.rules[name], self)
        return self.nodes[name]

    def get_size(self, name: str) -> tuple[int, int] | None:
        if name in self._in_progress:
            return None
        if name not in self.sizes:
            self._in_progress.add(name)
            self.sizes[name] = self.measure(self.rules[name])
            self._in_progress.discard(name)
        return self.sizes[name]

    def measure(self, node: Node) -> tuple[int, int] | None:
        """Return the number of nodes and the depth of a node with its rules inlined; None if they cannot be."""
        if isinstance(node, CharacterClass):
            return 1, 1
        if isinstance(node, RuleReference):
            return self.get_size(node.name)
        children = list(node.nodes) if isinstance(node, Concatenation | Alternation) else [node.node]
        nodes, depth = 1, 1
        for child in children:
            size = self.measure(child)
            if size is None:
                return None
            nodes, depth = nodes + size[0], max(depth, size[1] + 1)
        return (nodes, depth) if nodes <= MAX_LEXEME_NODES and depth <= MAX_LEXEME_DEPTH else None


def _inline(node: Node, inliner: _RuleInliner) -> Node:
    """Return a node with rules inlined where that is possible."""
    if isinstance(node, RuleReference):
        return inliner.inline(node.name) or node
    if isinstance(node, Repetition):
        return Repetition(_inline(node.node, inliner), node.low, node.high)
    if isinstance(node, Concatenation | Alternation):
        return type(node)(tuple(_inline(child, inliner) for child in node.nodes))
    return node


def _is_regular(node: Node, cache: dict[int, bool]) -> bool:
    """Whether a node refers to no rule; `cache` holds results by the ids of nodes."""
    if id(node) not in cache:
        if isinstance(node, RuleReference):
            cache[id(node)] = False
        elif isinstance(node, Repetition):
            cache[id(node)] = _is_regular(node.node, cache)
        elif isinstance(node, Concatenation | Alternation):
            cache[id(node)] = all(_is_regular(child, cache) for child in node.nodes)
        else:
            cache[id(node)] = True
    return cache[id(node)]


def _form_lexemes(node: Node) -> Node:
    """Return a node in which adjacent regular nodes form one lexeme."""
    cache: dict[int, bool] = {}

    def form(node: Node) -> Node:
        if _is_regular(node, cache):
            return _make_lexeme(node)
        if isinstance(node, Repetition):
            return EMPTY if node.high == 0 else Repetition(form(node.node), node.low, node.high)
        if isinstance(node, Concatenation):
            return _concatenate(form(child) for child in group(node.nodes, Concatenation))
        if isinstance(node, Alternation):
            return Alternation(tuple(form(child) for child in group(node.nodes, Alternation)))
        assert isinstance(node, RuleReference)
        return node

    def group(nodes: Iterable[Node], kind: type[Concatenation] | type[Alternation]) -> list[Node]:
        """Return the nodes, with adjacent regular nodes (in an alternation: all regular nodes) as one."""
        result: list[Node] = []
        regular: list[Node] = []
        for child in nodes:
            if _is_regular(child, cache):
                regular.append(child)
                continue
            if regular and kind is Concatenation:
                result.append(kind(tuple(regular)))
                regular = []
            result.append(child)
        if regular:
            result.append(kind(tuple(regular)))
        return result

    return form(node)


def _make_lexeme(node: Node) -> Node:
    """Return a regular node as a lexeme, which is optional if the node matches the empty text."""
    if not _has_characters(node):
        return EMPTY
    return Repetition(Lexeme(node), 0, 1) if _is_nullable(node) else Lexeme(node)


def _concatenate(parts: Iterable[Node]) -> Node:
    nodes: list[Node] = []
    for part in parts:
        nodes += part.nodes if isinstance(part, Concatenation) else [part]
    return nodes[0] if len(nodes) == 1 else Concatenation(tuple(nodes))


def _is_nullable(node: Node) -> bool:
    """Whether a regular node matches the empty text."""
    if isinstance(node, Concatenation):
        return all(_is_nullable(child) for child in node.nodes)
    if isinstance(node, Alternation):
        return any(_is_nullable(child) for child in node.nodes)
    return isinstance(node, Repetition) and (node.low == 0 or _is_nullable(node.node))


def _has_characters(node: Node) -> bool:
    """Whether a regular node matches a text that is not empty."""
    if isinstance(node, Concatenation | Alternation):
        return any(_has_characters(child) for child in node.nodes)
    return isinstance(node, CharacterClass) or (
        isinstance(node, Repetition) and node.high != 0 and _has_characters(node.node)
    )


def _select_used(parts: Mapping[str, Node]) -> dict[str, Node]:
    """Return the rules that root needs."""
    used = dict[str, Node]()
    stack = ["root"]
    while stack:
        name = stack.pop()
        if name not in used:
            used[name] = parts[name]
            stack += [part.name for part in walk(parts[name]) if isinstance(part, RuleReference)]
    return used


# ---- conflicts: lexemes that would consume characters of the following lexeme


@dataclass
class _Positions:
    """The position automaton of a lexeme (Glushkov 1961): its characters in order, and their possible successors.

    Counted repetitions are treated as unbounded: that can only report too many conflicts, never too few.
    """

    chars: list[Ranges]
    first: set[int]
    last: set[int]
    follow: list[set[int]]

    @cached_property
    def lead_bytes(self) -> list[int]:
        """The first bytes of each character, as bits."""
        return list(map(_find_lead_bytes, self.chars))

    @cached_property
    def continuing(self) -> int:
        """The first bytes of characters that may continue a text, as bits."""
        return reduce(or_, (self.lead_bytes[index] for following in self.follow for index in following), 0)


def _build_positions(node: Node, count: Callable[[int], None]) -> _Positions:
    """Return the automaton of a regular node; `count` is called with the amount of work."""
    chars: list[Ranges] = []
    follow: list[set[int]] = []

    def visit(node: Node) -> tuple[set[int], set[int], bool]:
        if isinstance(node, CharacterClass):
            chars.append(node.ranges)
            follow.append(set())
            return {len(chars) - 1}, {len(chars) - 1}, False
        if isinstance(node, Repetition):
            if node.high == 0:
                return set(), set(), True
            first, last, nullable = visit(node.node)
            if node.high is None or node.high > 1:
                count(len(last) * len(first))
                for end in last:
                    follow[end] |= first
            return first, last, nullable or node.low == 0
        if isinstance(node, Alternation):
            results = [visit(child) for child in node.nodes]
            return (
                set().union(*(result[0] for result in results)),
                set().union(*(result[1] for result in results)),
                any(result[2] for result in results),
            )
        assert isinstance(node, Concatenation)
        first, last, nullable = set[int](), set[int](), True
        for child in node.nodes:
            child_first, child_last, child_nullable = visit(child)
            count(len(last) * len(child_first) + nullable * len(first) + child_nullable * len(last))
            for previous in last:
                follow[previous] |= child_first
            first = first | child_first if nullable else first
            last = last | child_last if child_nullable else child_last
            nullable = nullable and child_nullable
        return first, last, nullable

    first, last, _ = visit(node)
    return _Positions(chars, first, last, follow)


class _LexemeComparison:
    """Finds lexemes that could consume characters of the text after another lexeme, or after themselves."""

    def __init__(self) -> None:
        self._automata: dict[Lexeme, _Positions] = {}
        self._num_compared = self._num_visited = 0

    def find_conflicts(self, follows: Mapping[Lexeme, Ranges]) -> set[Lexeme]:
        """Return these lexemes, given the characters that may follow each. Raises RequestError for too many pairs."""
        automata = {lexeme: self.get_positions(lexeme) for lexeme in follows}
        continuable = [(lexeme, positions) for lexeme, positions in automata.items() if positions.continuing]
        following = {lexeme: _find_lead_bytes(characters) for lexeme, characters in follows.items()}
        return {
            other
            for other, positions in continuable
            for lexeme, after in following.items()
            if after & positions.continuing and self._can_continue(automata[lexeme], positions, after)
        }

    def get_positions(self, lexeme: Lexeme) -> _Positions:
        """Return the automaton of a lexeme, built once. Raises RequestError if it is too large."""
        if lexeme not in self._automata:
            self._automata[lexeme] = _build_positions(lexeme.node, self._count)
        return self._automata[lexeme]

    def _can_continue(self, one: _Positions, other: _Positions, after: int) -> bool:
        """Whether `other` could continue a complete text of `one` with one of the lead bytes `after`."""
        self._count(len(one.first) * len(other.first))
        stack = [(p, q) for p in one.first for q in other.first if _overlap(one.chars[p], other.chars[q])]
        visited = set(stack)
        while stack:
            p, q = stack.pop()
            if p in one.last and any(other.lead_bytes[index] & after for index in other.follow[q]):
                return True
            self._count(len(one.follow[p]) * len(other.follow[q]))
            for pair in ((a, b) for a in one.follow[p] for b in other.follow[q]):
                if pair not in visited and _overlap(one.chars[pair[0]], other.chars[pair[1]]):
                    visited.add(pair)
                    stack.append(pair)
        return False

    def count_visit(self) -> None:
        """Count a node visited to find the characters that may follow lexemes. Raises RequestError for too many."""
        self._num_visited += 1
        if self._num_visited > MAX_VISITED_NODES:
            raise RequestError(TOO_LARGE)

    def _count(self, pairs: int) -> None:
        self._num_compared += 1 + pairs
        if self._num_compared > MAX_COMPARED_PAIRS:
            raise RequestError(TOO_LARGE)


def _find_lead_bytes(ranges: Ranges) -> int:
    """Return the first UTF-8 bytes of characters in these ranges, as bits: the lexer decides byte by byte."""
    result = 0
    for low, high in ranges:
        first, last = chr(min(low, 0xD7FF) if low <= 0xDFFF else low), chr(0xD7FF if 0xD800 <= high <= 0xDFFF else high)
        start, end = first.encode()[0], last.encode()[0]
        result |= (1 << (end + 1)) - (1 << start)
    return result


def _overlap(one: Ranges, other: Ranges) -> bool:
    index = 0
    for low, high in one:
        while index < len(other) and other[index][1] < low:
            index += 1
        if index < len(other) and other[index][0] <= high:
            return True
    return False


def _union(*sets: Ranges) -> Ranges:
    return merge_ranges([pair for ranges in sets for pair in ranges])


def _compute_following(parts: Mapping[str, Node], comparison: _LexemeComparison) -> dict[Lexeme, Ranges]:
    """Return the characters that may follow each lexeme, wherever it occurs: FIRST and FOLLOW, to a fixed point."""
    # By rule: its first characters, and whether it matches the empty text.
    first_of_rule: dict[str, tuple[Ranges, bool]] = dict.fromkeys(parts, ((), False))
    lexemes = {inner for part in parts.values() for inner in walk(part) if isinstance(inner, Lexeme)}
    automata = {lexeme: comparison.get_positions(lexeme) for lexeme in lexemes}
    starts = {
        lexeme: _union(*(positions.chars[index] for index in positions.first)) for lexeme, positions in automata.items()
    }

    cache: dict[int, tuple[Ranges, bool]] = {}  # by the ids of parts, in one pass

    def first(part: Node) -> tuple[Ranges, bool]:
        if id(part) not in cache:
            comparison.count_visit()
            cache[id(part)] = compute_first(part)
        return cache[id(part)]

    def compute_first(part: Node) -> tuple[Ranges, bool]:
        if isinstance(part, Lexeme):
            return starts[part], False
        if isinstance(part, RuleReference):
            return first_of_rule[part.name]
        if isinstance(part, Repetition):
            chars, nullable = first(part.node)
            return chars, nullable or part.low == 0
        assert isinstance(part, Concatenation | Alternation)  # a character class is always inside a lexeme
        results = [first(child) for child in part.nodes]
        if isinstance(part, Alternation):
            return _union(*(chars for chars, _ in results)), any(nullable for _, nullable in results)
        chars = ()
        for child_chars, nullable in results:
            chars = _union(chars, child_chars)
            if not nullable:
                return chars, False
        return chars, True

    changed = True
    while changed:
        changed = False
        for name, part in parts.items():
            cache.clear()
            if (result := first(part)) != first_of_rule[name]:
                first_of_rule[name] = result
                changed = True

    cache.clear()
    after_rule: dict[str, Ranges] = dict.fromkeys(parts, ())
    after_lexeme: dict[Lexeme, Ranges] = dict.fromkeys(starts, ())

    def visit(part: Node, following: Ranges) -> None:
        comparison.count_visit()
        if isinstance(part, Lexeme):
            after_lexeme[part] = _union(after_lexeme[part], following)
        elif isinstance(part, RuleReference):
            after_rule[part.name] = _union(after_rule[part.name], following)
        elif isinstance(part, Repetition):
            repeated = first(part.node)[0] if part.high is None or part.high > 1 else ()
            visit(part.node, _union(following, repeated))
        elif isinstance(part, Alternation):
            for child in part.nodes:
                visit(child, following)
        elif isinstance(part, Concatenation):
            for child in reversed(part.nodes):
                visit(child, following)
                chars, nullable = first(child)
                following = _union(chars, following) if nullable else chars

    previous: dict[str, Ranges] | None = None
    while previous != after_rule:
        previous = dict(after_rule)
        for name, part in parts.items():
            visit(part, after_rule[name])
    return after_lexeme


def _split_lexemes(part: Node, conflicting: set[Lexeme]) -> Node:
    """Return a part in which conflicting lexemes are replaced by lexemes for each of their parts."""
    if isinstance(part, Lexeme):
        if part not in conflicting:
            return part
        node = part.node
        if isinstance(node, Repetition):
            return Repetition(_make_lexeme(node.node), node.low, node.high)
        if isinstance(node, Alternation):
            return Alternation(tuple(map(_make_lexeme, node.nodes)))
        assert isinstance(node, Concatenation)  # a single character never conflicts
        return _concatenate(map(_make_lexeme, node.nodes))
    if isinstance(part, Repetition):
        return Repetition(_split_lexemes(part.node, conflicting), part.low, part.high)
    if isinstance(part, Alternation):
        return Alternation(tuple(_split_lexemes(child, conflicting) for child in part.nodes))
    if isinstance(part, Concatenation):
        return _concatenate(_split_lexemes(child, conflicting) for child in part.nodes)
    return part


# ---- text


def _write_lark(parts: Mapping[str, Node]) -> str:
    names = {name: "start" if name == "root" else f"rule_{number}" for number, name in enumerate(parts)}
    lexemes: dict[Lexeme, str] = {}

    def write(part: Node) -> str:
        if isinstance(part, Lexeme):
            return lexemes.setdefault(part, f"T{len(lexemes)}")
        if isinstance(part, RuleReference):
            return names[part.name]
        if isinstance(part, Repetition):
            return f"({write(part.node)}){_write_counts(part)}"
        if isinstance(part, Alternation):
            return f"({' | '.join(write(child) for child in part.nodes)})"
        assert isinstance(part, Concatenation)
        return " ".join(write(child) for child in part.nodes) or '""'

    rules = [f"{names[name]}: {write(part)}" for name, part in parts.items()]
    for lexeme, name in lexemes.items():
        not_empty = f" & /{ANY_CHARACTER}+/" if _is_nullable(lexeme.node) else ""
        rules.append(f"{name}: /{_write_regex(lexeme.node)}/{not_empty}")
    return "\n".join(rules)


def _write_counts(node: Repetition) -> str:
    simple = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    high = "" if node.high is None else node.high
    return simple.get((node.low, node.high)) or f"{{{node.low},{high}}}"


def _write_regex(node: Node) -> str:
    """Return a regular node as a regular expression of Rust's `regex`."""
    if isinstance(node, CharacterClass):
        negated = complement(node.ranges)
        if not negated:
            return ANY_CHARACTER
        if len(node.ranges) > MAX_CLASS_RANGES > len(negated):
            return f"[^{_write_ranges(negated)}]"
        return f"[{_write_ranges(node.ranges)}]"
    if isinstance(node, Repetition):
        return f"(?:{_write_regex(node.node)}){_write_counts(node)}"
    if isinstance(node, Alternation):
        return f"(?:{'|'.join(map(_write_regex, node.nodes))})"
    assert isinstance(node, Concatenation)
    return "".join(map(_write_regex, node.nodes))


def _write_ranges(ranges: Ranges) -> str:
    """Return ranges of characters as written in brackets, without surrogates, which are not characters."""
    items = []
    for low, high in ranges:
        for first, last in ((low, min(high, 0xD7FF)), (max(low, 0xE000), high)):
            if first <= last:
                items.append(_write_code(first) if first == last else f"{_write_code(first)}-{_write_code(last)}")
    return "".join(items)


def _write_code(code: int) -> str:
    return chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\x{{{code:X}}}"
