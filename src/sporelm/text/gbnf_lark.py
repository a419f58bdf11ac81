"""Translate GBNF into an equivalent grammar in llguidance's Lark.

GBNF is a grammar over characters. llguidance first splits a text into lexemes by longest match, so `[a-z]+ "b"` with a
terminal for each part would match nothing: the first terminal consumes the "b". So a part without recursion becomes one
terminal only where longest match loses no text: after a text of terminal x, no terminal y may be able to continue with
a character that can also follow x. Otherwise y is split, if necessary into single characters, which never conflict.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from operator import or_

from sporelm.errors import RequestError
from sporelm.text.gbnf import (
    EMPTY,
    Chars,
    Choice,
    Node,
    Repeat,
    Rule,
    Sequence,
    Terminal,
    complement,
    merged,
    parse_gbnf,
)
from sporelm.text.grammar_text import checked_text

MAX_TERMINAL = 2000  # nodes of a terminal, the rules in it written out
MAX_TERMINAL_DEPTH = 100
MAX_WRITTEN_OUT = 50_000  # nodes of all rules that are written out in place of their names; others stay rules
MAX_COMPARED = 200_000  # pairs of positions of terminals, which takes some tenths of a second
MAX_VISITED = 200_000  # nodes on the way to the characters that may follow terminals; that takes as long
MAX_NAMED_RANGES = 400  # ranges of a set of characters that is written as it is; more are usually written as the rest
TOO_LARGE = "grammar: too large and ambiguous to translate. Simplify it, or write it in Lark"
ANYTHING = "(?s:.)"  # one character, the end of a line too

Ranges = tuple[tuple[int, int], ...]


def gbnf_as_lark(given: object) -> str:
    """Return a GBNF grammar as Lark. Raises RequestError, which names the line, for what is not supported."""
    return _translated(checked_text("grammar", given))


@lru_cache(maxsize=16)
def _translated(text: str) -> str:
    rules = parse_gbnf(text)
    try:
        expansions = _Expansions(rules)
        parts = _used({name: _parts(_expanded(node, expansions)) for name, node in rules.items()})
        comparison = _Comparison()
        while taken_apart := comparison.conflicts(_following(parts, comparison)):
            parts = {name: _without(part, taken_apart) for name, part in parts.items()}
        return _lark(parts)
    except RecursionError:
        raise RequestError("grammar: nested too deeply") from None


# ---- terminals: parts without recursion, with the rules in them written out


class _Expansions:
    """The rules that can be written out in place of their names: they are not recursive, and small."""

    def __init__(self, rules: Mapping[str, Node]) -> None:
        self.rules = rules
        self.nodes: dict[str, Node] = {}
        self.sizes: dict[str, tuple[int, int] | None] = {}  # nodes and depth, or None for those that cannot be
        self._under_way: set[str] = set()
        self._written_out = 0

    def of(self, name: str) -> Node | None:
        """Return the rule written out, or None."""
        size = self.size(name)
        if size is None or self._written_out + size[0] > MAX_WRITTEN_OUT:
            return None
        self._written_out += size[0]
        if name not in self.nodes:
            self.nodes[name] = _expanded(self.rules[name], self)
        return self.nodes[name]

    def size(self, name: str) -> tuple[int, int] | None:
        if name in self._under_way:
            return None
        if name not in self.sizes:
            self._under_way.add(name)
            self.sizes[name] = self.size_of(self.rules[name])
            self._under_way.discard(name)
        return self.sizes[name]

    def size_of(self, node: Node) -> tuple[int, int] | None:
        """Return the nodes and the depth of a node that is written out, or None where it cannot be."""
        if isinstance(node, Chars):
            return 1, 1
        if isinstance(node, Rule):
            return self.size(node.name)
        children = list(node.nodes) if isinstance(node, Sequence | Choice) else [node.node]
        nodes, depth = 1, 1
        for child in children:
            size = self.size_of(child)
            if size is None:
                return None
            nodes, depth = nodes + size[0], max(depth, size[1] + 1)
        return (nodes, depth) if nodes <= MAX_TERMINAL and depth <= MAX_TERMINAL_DEPTH else None


def _expanded(node: Node, expansions: _Expansions) -> Node:
    """Return a node with rules written out where that is possible."""
    if isinstance(node, Rule):
        return expansions.of(node.name) or node
    if isinstance(node, Repeat):
        return Repeat(_expanded(node.node, expansions), node.low, node.high)
    if isinstance(node, Sequence | Choice):
        return type(node)(tuple(_expanded(each, expansions) for each in node.nodes))
    return node


def _is_regular(node: Node, known: dict[int, bool]) -> bool:
    """Whether no rule is referred to; `known` holds what was found, by the ids of nodes."""
    if id(node) not in known:
        if isinstance(node, Rule):
            known[id(node)] = False
        elif isinstance(node, Repeat):
            known[id(node)] = _is_regular(node.node, known)
        elif isinstance(node, Sequence | Choice):
            known[id(node)] = all(_is_regular(each, known) for each in node.nodes)
        else:
            known[id(node)] = True
    return known[id(node)]


def _parts(node: Node) -> Node:
    """Return a node as parts: what refers to no rule, and what stands side by side of it, as one terminal."""
    known: dict[int, bool] = {}

    def made(node: Node) -> Node:
        if _is_regular(node, known):
            return _terminal(node)
        if isinstance(node, Repeat):
            return EMPTY if node.high == 0 else Repeat(made(node.node), node.low, node.high)
        if isinstance(node, Sequence):
            return _sequence(made(each) for each in _joined(node.nodes, Sequence))
        if isinstance(node, Choice):
            return Choice(tuple(made(each) for each in _joined(node.nodes, Choice)))
        assert isinstance(node, Rule)
        return node

    def _joined(nodes: Iterable[Node], kind: type[Sequence] | type[Choice]) -> list[Node]:
        """The nodes, with neighbours that are regular (of a choice: all that are) as one."""
        found: list[Node] = []
        regular: list[Node] = []
        for each in nodes:
            if _is_regular(each, known):
                regular.append(each)
                continue
            if regular and kind is Sequence:
                found.append(kind(tuple(regular)))
                regular = []
            found.append(each)
        if regular:
            found.append(kind(tuple(regular)))
        return found

    return made(node)


def _terminal(node: Node) -> Node:
    """Return a regular node as a terminal, which may be left out where the node matches the empty text."""
    if not _has_characters(node):
        return EMPTY
    return Repeat(Terminal(node), 0, 1) if _is_nullable(node) else Terminal(node)


def _sequence(parts: Iterable[Node]) -> Node:
    found: list[Node] = []
    for each in parts:
        found += each.nodes if isinstance(each, Sequence) else [each]
    return found[0] if len(found) == 1 else Sequence(tuple(found))


def _is_nullable(node: Node) -> bool:
    """Whether a regular node matches the empty text."""
    if isinstance(node, Sequence):
        return all(_is_nullable(each) for each in node.nodes)
    if isinstance(node, Choice):
        return any(_is_nullable(each) for each in node.nodes)
    return isinstance(node, Repeat) and (node.low == 0 or _is_nullable(node.node))


def _has_characters(node: Node) -> bool:
    """Whether a regular node matches more than the empty text."""
    if isinstance(node, Sequence | Choice):
        return any(_has_characters(each) for each in node.nodes)
    return isinstance(node, Chars) or (isinstance(node, Repeat) and node.high != 0 and _has_characters(node.node))


def _used(parts: Mapping[str, Node]) -> dict[str, Node]:
    """The rules that root needs."""
    found, waiting = dict[str, Node](), ["root"]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = parts[name]
            waiting += [each.name for each in _inside(parts[name]) if isinstance(each, Rule)]
    return found


def _inside(part: Node) -> list[Node]:
    """A part and all parts in it."""
    found, waiting = list[Node](), [part]
    while waiting:
        each = waiting.pop()
        found.append(each)
        if isinstance(each, Sequence | Choice):
            waiting += each.nodes
        elif isinstance(each, Repeat):
            waiting.append(each.node)
    return found


# ---- conflicts: terminals that would consume characters of the following terminal


@dataclass
class _Positions:
    """The position automaton of a terminal (Glushkov 1961): its characters in order, and which may follow which.

    Counted repetitions are treated as unbounded: that can only report too many conflicts, never too few.
    """

    chars: list[Ranges]
    first: set[int]
    last: set[int]
    follow: list[set[int]]

    @cached_property
    def leads(self) -> list[int]:
        """First bytes of each character, as bits."""
        return list(map(_lead_bytes, self.chars))

    @cached_property
    def continuing(self) -> int:
        """First bytes of characters with which a text that is begun may go on, as bits."""
        return reduce(or_, (self.leads[each] for following in self.follow for each in following), 0)


def _positions(node: Node, count: Callable[[int], None]) -> _Positions:
    """Return the automaton of a regular node; `count` is told of each bit of work."""
    chars: list[Ranges] = []
    follow: list[set[int]] = []

    def walk(node: Node) -> tuple[set[int], set[int], bool]:
        if isinstance(node, Chars):
            chars.append(node.ranges)
            follow.append(set())
            return {len(chars) - 1}, {len(chars) - 1}, False
        if isinstance(node, Repeat):
            if node.high == 0:
                return set(), set(), True
            first, last, nullable = walk(node.node)
            if node.high is None or node.high > 1:
                count(len(last) * len(first))
                for end in last:
                    follow[end] |= first
            return first, last, nullable or node.low == 0
        if isinstance(node, Choice):
            found = [walk(each) for each in node.nodes]
            return (
                set().union(*(each[0] for each in found)),
                set().union(*(each[1] for each in found)),
                any(each[2] for each in found),
            )
        assert isinstance(node, Sequence)
        first, last, nullable = set[int](), set[int](), True
        for each in node.nodes:
            begins, ends, empty = walk(each)
            count(len(last) * len(begins) + nullable * len(first) + empty * len(last))
            for before in last:
                follow[before] |= begins
            first = first | begins if nullable else first
            last = last | ends if empty else ends
            nullable = nullable and empty
        return first, last, nullable

    first, last, _ = walk(node)
    return _Positions(chars, first, last, follow)


class _Comparison:
    """Which terminals could take characters that belong to what follows another, or themselves."""

    def __init__(self) -> None:
        self._automata: dict[Terminal, _Positions] = {}
        self._compared = self._visited = 0

    def conflicts(self, follows: Mapping[Terminal, Ranges]) -> set[Terminal]:
        """Return these terminals, given the characters that may follow each. Raises RequestError for too many pairs."""
        automata = {each: self.positions(each) for each in follows}
        several = [(each, found) for each, found in automata.items() if found.continuing]
        leads = {each: _lead_bytes(after) for each, after in follows.items()}
        return {
            other
            for other, going_on in several
            for ended, after in leads.items()
            if after & going_on.continuing and self._goes_on(automata[ended], going_on, after)
        }

    def positions(self, terminal: Terminal) -> _Positions:
        """Return the automaton of a terminal, made once. Raises RequestError for too large a one."""
        if terminal not in self._automata:
            self._automata[terminal] = _positions(terminal.node, self._count)
        return self._automata[terminal]

    def _goes_on(self, ended: _Positions, other: _Positions, after: int) -> bool:
        """Whether after some text of the one the other could go on with one of these first bytes of a character."""
        self._count(len(ended.first) * len(other.first))
        waiting = [(p, q) for p in ended.first for q in other.first if _overlap(ended.chars[p], other.chars[q])]
        seen = set(waiting)
        while waiting:
            p, q = waiting.pop()
            if p in ended.last and any(other.leads[each] & after for each in other.follow[q]):
                return True
            self._count(len(ended.follow[p]) * len(other.follow[q]))
            for pair in ((a, b) for a in ended.follow[p] for b in other.follow[q]):
                if pair not in seen and _overlap(ended.chars[pair[0]], other.chars[pair[1]]):
                    seen.add(pair)
                    waiting.append(pair)
        return False

    def count_visit(self) -> None:
        """Count a node on the way to the characters that may follow terminals. Raises RequestError for too many."""
        self._visited += 1
        if self._visited > MAX_VISITED:
            raise RequestError(TOO_LARGE)

    def _count(self, pairs: int) -> None:
        self._compared += 1 + pairs
        if self._compared > MAX_COMPARED:
            raise RequestError(TOO_LARGE)


def _lead_bytes(ranges: Ranges) -> int:
    """Return the first bytes in UTF-8 of characters of these ranges, as bits: the lexer decides byte by byte."""
    found = 0
    for low, high in ranges:
        first, last = chr(min(low, 0xD7FF) if low <= 0xDFFF else low), chr(0xD7FF if 0xD800 <= high <= 0xDFFF else high)
        start, end = first.encode()[0], last.encode()[0]
        found |= (1 << (end + 1)) - (1 << start)
    return found


def _overlap(one: Ranges, other: Ranges) -> bool:
    at = 0
    for low, high in one:
        while at < len(other) and other[at][1] < low:
            at += 1
        if at < len(other) and other[at][0] <= high:
            return True
    return False


def _union(*several: Ranges) -> Ranges:
    return merged([each for ranges in several for each in ranges])


def _following(parts: Mapping[str, Node], comparison: _Comparison) -> dict[Terminal, Ranges]:
    """Return the characters that may follow each terminal, wherever it stands: FIRST and FOLLOW, to a fixed point."""
    begins: dict[str, tuple[Ranges, bool]] = dict.fromkeys(
        parts, ((), False)
    )  # characters, and whether it may be empty
    terminals = {each for part in parts.values() for each in _inside(part) if isinstance(each, Terminal)}
    automata = {each: comparison.positions(each) for each in terminals}
    starts = {each: _union(*(found.chars[at] for at in found.first)) for each, found in automata.items()}

    known: dict[int, tuple[Ranges, bool]] = {}  # by the ids of parts, in one pass

    def first(part: Node) -> tuple[Ranges, bool]:
        if id(part) not in known:
            comparison.count_visit()
            known[id(part)] = first_of(part)
        return known[id(part)]

    def first_of(part: Node) -> tuple[Ranges, bool]:
        if isinstance(part, Terminal):
            return starts[part], False
        if isinstance(part, Rule):
            return begins[part.name]
        if isinstance(part, Repeat):
            chars, nullable = first(part.node)
            return chars, nullable or part.low == 0
        assert isinstance(part, Sequence | Choice)  # a set of characters stands in a terminal
        found = [first(each) for each in part.nodes]
        if isinstance(part, Choice):
            return _union(*(chars for chars, _ in found)), any(nullable for _, nullable in found)
        chars = ()
        for more, nullable in found:
            chars = _union(chars, more)
            if not nullable:
                return chars, False
        return chars, True

    changed = True
    while changed:
        changed = False
        for name, part in parts.items():
            known.clear()
            if (found := first(part)) != begins[name]:
                begins[name], changed = found, True

    known.clear()
    after: dict[str, Ranges] = dict.fromkeys(parts, ())
    found_after: dict[Terminal, Ranges] = dict.fromkeys(starts, ())

    def visit(part: Node, following: Ranges) -> None:
        comparison.count_visit()
        if isinstance(part, Terminal):
            found_after[part] = _union(found_after[part], following)
        elif isinstance(part, Rule):
            after[part.name] = _union(after[part.name], following)
        elif isinstance(part, Repeat):
            again = first(part.node)[0] if part.high is None or part.high > 1 else ()
            visit(part.node, _union(following, again))
        elif isinstance(part, Choice):
            for each in part.nodes:
                visit(each, following)
        elif isinstance(part, Sequence):
            for each in reversed(part.nodes):
                visit(each, following)
                chars, nullable = first(each)
                following = _union(chars, following) if nullable else chars

    before: dict[str, Ranges] | None = None
    while before != after:
        before = dict(after)
        for name, part in parts.items():
            visit(part, after[name])
    return found_after


def _without(part: Node, taken_apart: set[Terminal]) -> Node:
    """Return a part in which terminals are replaced by those of the parts that they are made of."""
    if isinstance(part, Terminal):
        if part not in taken_apart:
            return part
        node = part.node
        if isinstance(node, Repeat):
            return Repeat(_terminal(node.node), node.low, node.high)
        if isinstance(node, Choice):
            return Choice(tuple(map(_terminal, node.nodes)))
        assert isinstance(node, Sequence)  # a single character conflicts with nothing
        return _sequence(map(_terminal, node.nodes))
    if isinstance(part, Repeat):
        return Repeat(_without(part.node, taken_apart), part.low, part.high)
    if isinstance(part, Choice):
        return Choice(tuple(_without(each, taken_apart) for each in part.nodes))
    if isinstance(part, Sequence):
        return _sequence(_without(each, taken_apart) for each in part.nodes)
    return part


# ---- text


def _lark(parts: Mapping[str, Node]) -> str:
    names = {name: "start" if name == "root" else f"rule_{number}" for number, name in enumerate(parts)}
    terminals: dict[Terminal, str] = {}

    def written(part: Node) -> str:
        if isinstance(part, Terminal):
            return terminals.setdefault(part, f"T{len(terminals)}")
        if isinstance(part, Rule):
            return names[part.name]
        if isinstance(part, Repeat):
            return f"({written(part.node)}){_counts(part)}"
        if isinstance(part, Choice):
            return f"({' | '.join(written(each) for each in part.nodes)})"
        assert isinstance(part, Sequence)
        return " ".join(written(each) for each in part.nodes) or '""'

    rules = [f"{names[name]}: {written(part)}" for name, part in parts.items()]
    for each, name in terminals.items():
        not_empty = f" & /{ANYTHING}+/" if _is_nullable(each.node) else ""
        rules.append(f"{name}: /{_regex(each.node)}/{not_empty}")
    return "\n".join(rules)


def _counts(node: Repeat) -> str:
    simple = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    high = "" if node.high is None else node.high
    return simple.get((node.low, node.high)) or f"{{{node.low},{high}}}"


def _regex(node: Node) -> str:
    """Return a regular node as a regular expression of Rust's `regex`."""
    if isinstance(node, Chars):
        rest = complement(node.ranges)
        if not rest:
            return ANYTHING
        if len(node.ranges) > MAX_NAMED_RANGES > len(rest):
            return f"[^{_set(rest)}]"
        return f"[{_set(node.ranges)}]"
    if isinstance(node, Repeat):
        return f"(?:{_regex(node.node)}){_counts(node)}"
    if isinstance(node, Choice):
        return f"(?:{'|'.join(map(_regex, node.nodes))})"
    assert isinstance(node, Sequence)
    return "".join(map(_regex, node.nodes))


def _set(ranges: Ranges) -> str:
    """Ranges of characters as they stand in brackets, without the surrogates, which are not characters."""
    found = []
    for low, high in ranges:
        for first, last in ((low, min(high, 0xD7FF)), (max(low, 0xE000), high)):
            if first <= last:
                found.append(_code(first) if first == last else f"{_code(first)}-{_code(last)}")
    return "".join(found)


def _code(code: int) -> str:
    return chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\x{{{code:X}}}"
