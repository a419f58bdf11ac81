"""GBNF grammars: what llguidance matches of their translation is what they match, and the rest is refused by line."""

import contextlib
import itertools
import random
from collections.abc import Callable
from time import process_time

import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from sporelm.errors import RequestError
from sporelm.text.grammar.gbnf import (
    Alternation,
    CharacterClass,
    Concatenation,
    Node,
    Repetition,
    RuleReference,
    parse_gbnf,
)
from sporelm.text.grammar.gbnf_to_lark import gbnf_as_lark

JSON = r"""
root ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [1-9] [0-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""


class _Bytes:
    """A vocabulary of all bytes."""

    eos_token_id, bos_token_id = 256, None
    special_token_ids = (256,)
    tokens = (*(bytes([each]) for each in range(256)), b"</s>")

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


@pytest.fixture(scope="module")
def vocabulary() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Bytes()), eos_token=[256])


def matcher(vocabulary: LLTokenizer, grammar: str) -> Callable[[str], bool]:
    """Whether a text is one that the translated grammar allows, as a whole."""
    first = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(gbnf_as_lark(grammar)), log_level=0)
    assert not first.is_error(), first.get_error()

    def accepts(text: str) -> bool:
        begun, data = first.deep_copy(), list(text.encode())
        taken = begun.try_consume_tokens(data) if data else 0
        return bool(taken == len(data) and begun.is_accepting())

    return accepts


def allows(rules: dict[str, Node], text: str) -> bool:
    """Whether a grammar allows a text: the definition, evaluated to a fixed point."""
    found: dict[tuple[str, int], set[int]] = {(name, at): set() for name in rules for at in range(len(text) + 1)}

    def ends(node: Node, start: int) -> set[int]:
        if isinstance(node, CharacterClass):
            fits = start < len(text) and any(low <= ord(text[start]) <= high for low, high in node.ranges)
            return {start + 1} if fits else set()
        if isinstance(node, RuleReference):
            return found[node.name, start]
        if isinstance(node, Alternation):
            return set().union(*(ends(each, start) for each in node.nodes))
        if isinstance(node, Concatenation):
            reached = {start}
            for each in node.nodes:
                reached = set().union(*(ends(each, at) for at in reached))
            return reached
        assert isinstance(node, Repetition)
        reached, every, count = {start}, {start} if node.low == 0 else set(), 0
        while reached and count < (node.low + len(text) + 1 if node.high is None else node.high):
            reached, count = set().union(*(ends(node.node, at) for at in reached)), count + 1
            if count >= node.low:
                every |= reached
        return every

    changed = True
    while changed:
        changed = False
        for (name, at), known in found.items():
            if not (new := ends(rules[name], at)) <= known:
                known |= new
                changed = True
    return len(text) in found["root", 0]


def test_json_as_llama_cpps_example_has_it(vocabulary: LLTokenizer) -> None:
    accepts = matcher(vocabulary, JSON)
    for text in ("{}", '{"a": 1}', '{"a": [1, "x\\u00e4", {"b":true}],\n "c": -1.5e3}', '{"é\\n":null} '):
        assert accepts(text), text
    for text in ("", "[1]", '{"a" 1}', '{"a":tru}', '{"a":1', '{"a":01}', '{"a":"\n"}', '{"a":1,}'):
        assert not accepts(text), text


def test_strings_of_json_are_one_lexeme() -> None:
    """Strings that no other terminal can split are one lexeme: a long token is one step, not one step per character."""
    terminals = [line for line in gbnf_as_lark(JSON).splitlines() if line.startswith("T")]
    assert any("u" in line and "bfnrt" in line for line in terminals)
    assert len(terminals) < 12


@pytest.mark.parametrize(
    ("grammar", "allowed", "refused"),
    [
        ('root ::= [a-z]+ "b"', ["ab", "bb", "aab"], ["b", "a", "abc"]),
        ('root ::= "(" root ")" | [a-z]* "b"', ["b", "ab", "((ab))"], ["()", "(ab"]),
        ('root ::= item+\nitem ::= "- " [^\\n]+ "\\n"', ["- a\n", "- a\n- é\n"], ["", "- \n", "- a"]),
        ('root ::= (x | y)* "."\nx ::= "a" | "ab"\ny ::= "b" "c"?', [".", "abc.", "abbc."], ["ac."]),
        ('root ::= ab{2} | "x"{2,} | [0-9]{1,3}\nab ::= "ab"', ["abab", "xxx", "12"], ["ab", "x", "1234", ""]),
        ('root ::= a | "" # empty\na ::= "a" root', ["", "a", "aaa"], ["b"]),
        ("root ::= [\\x41-\\u0043\\U00000044\\]\\\\-] .", ["Ax", "D\n", "]é", "\\\\", "-\U0001f917"], ["E", "A"]),
        ("root ::= [^a]", ["b", "é", "\n", "\U0001f917"], ["a", ""]),
        ('root ::= "\\t\\r\\n\\"\\\\"', ['\t\r\n"\\'], ["t"]),
        ('root ::= (\n  # in a group lines may end\n  "a"\n  |\n\n  "b"\n)', ["a", "b"], ["ab"]),
        ('root ::= "a" |\n  "b"\nx-y_2 ::= "unused"\r\n', ["a", "b"], ["ab"]),
        ('root ::= root "a" | "b"', ["b", "ba", "baa"], ["a", "ab"]),
        ('root ::= x{0} "b" x{0,1}\nx ::= "a" x?', ["b", "baa"], ["ab"]),
    ],
)
def test_syntax(vocabulary: LLTokenizer, grammar: str, allowed: list[str], refused: list[str]) -> None:
    accepts = matcher(vocabulary, grammar)
    assert [text for text in allowed if not accepts(text)] == []
    assert [text for text in refused if accepts(text)] == []


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("", "grammar is empty"),
        (" \n", "grammar is empty"),
        (["root"], "grammar is a list: it must be a string"),
        ('root ::= "a" #' + "#" * 65_536, "too long (got 65550 characters; allowed: 65536)"),
        ("# a comment", "the rule root is missing"),
        ('start ::= "a"', "the rule root is missing"),
        ('root ::= "a"\nroot ::= "b"', "line 2: the rule 'root' is defined twice"),
        ('root ::= "a"\n  | x', "line 2: expected a rule name (got '| x')"),
        ('root ::= "a" |\n x', "line 2: undefined rule 'x'"),
        ("root : x", "line 1: ::= is missing after 'root'"),
        ('root ::= "a', 'line 1: " is missing'),
        ("root ::= [a", "line 1: ] is missing"),
        ("root ::= [z-a]", "line 1: the range 'z' to 'a' is in reverse order"),
        ("root ::= []", "line 1: empty character class"),
        ('root ::= ("a"\n', "line 2: ) is missing"),
        ('root ::= "a" )', "line 1: unexpected ')'"),
        ("root ::= * x", "line 1: nothing to repeat before '*'"),
        ('root ::= "a"{2,1}', "line 1: the minimum of {2,1} is above its maximum"),
        ('root ::= "a"{x}', "line 1: malformed repetition"),
        ('root ::= "a"{2001}', "line 1: too many repetitions (got {2001}; allowed: 2000)"),
        ('root ::= "a"+?', "line 1: '?' follows another repetition"),
        ('root ::= "\\q"', "line 1: unknown escape \\q"),
        ('root ::= "\\x4"', "line 1: \\x needs 2 hexadecimal digits"),
        ('root ::= "\\ud800"', "line 1: \\ud800 is not a Unicode character"),
        ('root ::=\n  <think> "a"', "line 2: token references are not supported (got '<think>')"),
        ("root ::= !<[7]>", "line 1: token references are not supported (got '!<[7]>')"),
        ("root ::= " + "(" * 40 + '"a"' + ")" * 40, "line 1: groups are nested more than 32 deep"),
        ("\n".join(f'{"root" if not n else f"r{n}"} ::= "a"' for n in range(300)), "too many rules (allowed: 256)"),
    ],
)
def test_what_is_refused_is_named_with_its_line(grammar: object, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        gbnf_as_lark(grammar)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "grammar",
    [
        "root ::= " + '"a"? ' * 13_000,
        "root ::= root? (" + " | ".join(f'[a-z] "{n}" [a-z]*' for n in range(1500)) + ")",
        "root ::= root? " + ("(" * 30 + "[a-z]* root?" + ")* [a-b]*" * 30) * 200,
        "root ::= root? " + " a" * 30_000 + "\na ::= " + "[a-z]? " * 600,
        "root ::= " + "root " * 13_000 + '| "a"',
        "root ::= " + " | ".join(f"[a-z]{{{n}}} root" for n in range(1, 400)),
        "\n".join(["root ::= r0 root", *(f"r{n} ::= r{n + 1} r{n + 1}" for n in range(200)), 'r200 ::= "a"']),
        "\n".join(
            ["root ::= r0 root | [a-z]", *(f'r{n} ::= "a"? (r{n + 1} | "b")*' for n in range(200)), 'r200 ::= "a"']
        ),
    ],
)
def test_hostile_grammars_take_a_moment_at_most(grammar: str) -> None:
    began = process_time()
    with contextlib.suppress(RequestError):  # too large and ambiguous
        assert gbnf_as_lark(grammar)
    assert process_time() - began < 5  # on a slow machine; without limits it would take minutes to hours


def random_node(chance: random.Random, names: list[str], depth: int) -> str:
    """Return a random expression over a few letters. Two of them share their first byte in UTF-8."""
    kind = chance.randrange(8 if depth else 3)
    if kind == 0:
        return '"' + "".join(chance.choices("abéè", k=chance.randrange(1, 3))) + '"'
    if kind == 1:
        return chance.choice(["[ab]", "[bé]", "[^a]", "[a-bè]", "[é]", "."])
    if kind == 2:
        return chance.choice(names)
    first, second = (random_node(chance, names, depth - 1) for _ in range(2))
    if kind in (3, 4):
        return f"{first} {second}"
    if kind == 5:
        return f"({first} | {second})"
    return f"({first}){chance.choice(['*', '+', '?', '{0,2}', '{2}', '{1,}'])}"


def agree(vocabulary: LLTokenizer, seeds: range, longest: int) -> None:
    """Check that translation does not change which texts of up to `longest` letters these grammars allow."""
    texts = ["".join(letters) for count in range(longest + 1) for letters in itertools.product("abéè", repeat=count)]
    for seed in seeds:
        chance = random.Random(seed)
        names = ["root", "x", "y"]
        grammar = "\n".join(
            f"{name} ::= {random_node(chance, names, 3)} | {random_node(chance, names, 2)}" for name in names
        )
        rules, accepts = parse_gbnf(grammar), matcher(vocabulary, grammar)
        wrong = [text for text in texts if accepts(text) is not allows(rules, text)]
        assert not wrong, (seed, grammar, gbnf_as_lark(grammar), wrong[:5])


def test_translations_of_random_grammars_allow_the_same_texts(vocabulary: LLTokenizer) -> None:
    agree(vocabulary, range(25), 3)


@pytest.mark.all
def test_translations_of_many_random_grammars_allow_the_same_texts(vocabulary: LLTokenizer) -> None:
    agree(vocabulary, range(25, 2000), 4)
