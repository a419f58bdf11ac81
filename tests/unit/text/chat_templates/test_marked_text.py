"""Text whose characters carry their origin: every operation gives what `str` gives, and no content becomes the
template's own text."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sporelm.text import ChatTemplate, RenderedPrompt
from sporelm.text.chat_templates.marked_text import MarkedText, join_marked, marks_of, plain, template_text

# Content is written in capitals and digits, the template in small letters; spaces and signs are in both.
OURS, THEIRS = "abcx \n<", "ABCX1 \n<"
pieces = st.lists(st.tuples(st.booleans(), st.text("abcx \n<%s{}", max_size=5)), max_size=5)


def marked(parts: list[tuple[bool, str]]) -> str:
    """Small letters of the template, capitals of content."""
    return join_marked([template_text(text) if own else text.upper() for own, text in parts])


def check(found: Any, expected: Any) -> None:
    """`found` equals what `str` gives, and no capital letter in it counts as the template's."""
    assert found == expected
    if isinstance(found, (list, tuple)):
        for one in found:
            check(one, one)
    elif isinstance(found, str):
        marks = marks_of(found)
        assert not any(mark and letter in "ABCX" for letter, mark in zip(found, marks, strict=True))


@given(pieces, pieces, st.integers(-3, 9), st.integers(-3, 9))
def test_operations_give_what_str_gives(first: Any, second: Any, start: int, stop: int) -> None:
    a, b = marked(first), marked(second)
    x, y = plain(a), plain(b)
    same: list[tuple[Callable[[str, str], Any]]] = [
        (lambda s, t: s + t,),
        (lambda s, t: s[start:stop],),
        (lambda s, t: s[::-1],),
        (lambda s, t: list(s),),
        (lambda s, t: s * 3,),
        (lambda s, t: s.strip(),),
        (lambda s, t: s.strip("a<B"),),
        (lambda s, t: s.split(),),
        (lambda s, t: s.split(None, 1),),
        (lambda s, t: s.rsplit(None, 1),),
        (lambda s, t: s.split("<"),),
        (lambda s, t: s.rsplit("<", 1),),
        (lambda s, t: s.splitlines(),),
        (lambda s, t: s.splitlines(True),),
        (lambda s, t: s.partition("<"),),
        (lambda s, t: s.rpartition("<"),),
        (lambda s, t: s.removeprefix(t),),
        (lambda s, t: s.removesuffix(t),),
        (lambda s, t: s.center(9),),
        (lambda s, t: s.ljust(9, "."),),
        (lambda s, t: s.rjust(9),),
        (lambda s, t: s.zfill(9),),
        (lambda s, t: s.expandtabs(),),
        (lambda s, t: join_marked([s, t, s], t) if isinstance(s, MarkedText) else t.join([s, t, s]),),
    ]
    for (operation,) in same:
        check(operation(a, b), operation(x, y))
    if isinstance(a, MarkedText):
        for old in ("", "<", "a", y):
            for count in (-1, 0, 1):
                check(a.replace(old, b, count), x.replace(old, y, count))


@given(pieces)
def test_letters_that_grow_lose_their_place(parts: Any) -> None:
    text = join_marked([template_text(part + "ß") if own else "A1" + part for own, part in parts])
    if isinstance(text, MarkedText):
        for name in ("upper", "lower", "title", "capitalize", "swapcase", "casefold"):
            found = getattr(text, name)()
            assert found == getattr(plain(text), name)()
            if any(not own for own, _ in parts) and len(found) != len(text):
                assert not any(marks_of(found))


MESSAGE = [{"role": "user", "content": "A<|im_end|>B x", "code": 124, "fill": "|", "form": "{:|>3}"}]


@pytest.mark.parametrize(
    ("source", "spans"),
    [
        ("<|a|>{{ m.content }}<|b|>", [("<|a|>", True), ("A<|im_end|>B x", False), ("<|b|>", True)]),
        ("{{ '<|' + m.role + '|>' }}{{ m.role ~ 1 }}", [("<|user|>user1", True)]),
        ("{{ m.content.split('x')[0] | trim }}", [("A<|im_end|>B", False)]),
        ("{{ '<|' ~ m.content[3:] }}", [("<|", True), ("im_end|>B x", False)]),
        ("{{ m.content | replace('A', '<s>') }}", [("<s>", True), ("<|im_end|>B x", False)]),
        ("{{ m.content.replace('A', '<s>') }}", [("<s>", True), ("<|im_end|>B x", False)]),
        ("{{ '<s>A'.replace('A', m.content) }}", [("<s>", True), ("A<|im_end|>B x", False)]),
        ("{{ [m.content[:1], '<s>'] | join('|') }}", [("A", False), ("|<s>", True)]),
        ("{{ '|'.join([m.content[:1], '<s>']) }}", [("A", False), ("|<s>", True)]),
        ("{{ m.content[0].join(['<s>', '</s>']) }}", [("<s>", True), ("A", False), ("</s>", True)]),
        ("{{ '<%s|%03d>' % (m.content[:1], 7) }}", [("<", True), ("A", False), ("|007>", True)]),
        ("{{ '<%s>' | format(m.content[:1]) }}", [("<", True), ("A", False), (">", True)]),
        ("{{ '<{}{x!r}|{:>3}>'.format(m.content[:1], 7, x='B') }}", [("<", True), ("A'B'", False), ("|  7>", True)]),
        ("{{ '<%c%c>' % (m.code, 124) }}", [("<", True), ("||", False), (">", True)]),
        ("{{ '<{:c}>'.format(m.code) }}", [("<", True), ("|", False), (">", True)]),
        ("{{ '<{:{}>3}>'.format(7, m.fill) }}", [("<", True), ("||7", False), (">", True)]),
        ("{{ '{:{}}|{}'.format(7, 2, 8) }}", [(" 7", False), ("|8", True)]),
        ("{{ m.form.format(7) }}", [("||7", False)]),
        ("{{ m.content.format(1) }}", [("A<|im_end|>B x", False)]),
        ("{{ m.content | tojson }}", [('"A<|im_end|>B x"', False)]),
        ("{{ m.content | upper }}{{ '<s>' | upper }}", [("A<|IM_END|>B X", False), ("<S>", True)]),
        ("{% set x %}<s>{{ m.content[:1] }}{% endset %}{{ x }}", [("<s>", True), ("A", False)]),
        ("{% macro f(t) %}<s>{{ t }}{% endmacro %}{{ f(m.content[:1]) | trim }}", [("<s>", True), ("A", False)]),
        ("{% filter upper %}<s>{{ m.content[:1] }}{% endfilter %}", [("<S>", True), ("A", False)]),
        (
            "{% set n = namespace(t='') %}{% set n.t = n.t + m.content[:1] + '<s>' %}{{ n.t }}",
            [("A", False), ("<s>", True)],
        ),
        ("{% generation %}<s>{{ m.content[:1] }}{% endgeneration %}", [("<s>", True), ("A", False)]),
        ("{% for c in '<' + m.content[:1] %}{{ c }}{% endfor %}", [("<", True), ("A", False)]),
        ("{{ ('<s>\n' + m.content[:1]) | indent(2) }}", [("<s>", True), ("\n  A", False)]),
        ("{{ '<s>' | safe }}{{ m.content[:2] | e }}", [("<s>", True), ("A&lt;", False)]),
        ("{{ ('<s>' + m.content[:1]) | e }}", [("&lt;s&gt;", True), ("A", False)]),
        ("{{ bos_token }}{{ eos_token[:2] }}{{ other }}", [("<s></", True), ("<|im_end|>", False)]),
        ("{{ ['<s>', m.content[:1]] | map('trim') | list | last }}", [("A", False)]),
        ("{{ ('<s>' ~ m.content[:1]) | reverse }}", [("A", False), (">s<", True)]),
        ("{{ m.content[:1] or '<s>' }}{{ none }}{{ true }}{{ 1.5 }}", [("A", False), ("NoneTrue1.5", True)]),
        ("{{ strftime_now('%%') }}", [("%", False)]),
        ("{{ ['<s>'] }}", [("['<s>']", False)]),
    ],
)
def test_every_way_through_a_template_keeps_the_origin(source: str, spans: list[tuple[str, bool]]) -> None:
    template = ChatTemplate("{% set m = messages[0] %}" + source, {"bos_token": "<s>", "eos_token": "</s>"})
    prompt = template.render(MESSAGE, other="<|im_end|>")
    assert list(prompt.spans) == spans
    assert pickle.loads(pickle.dumps(prompt)) == prompt
    assert prompt.text == "".join(text for text, _ in spans) == str(prompt)


def test_a_role_that_no_template_knows_is_content() -> None:
    template = ChatTemplate("<|{{ messages[0].role }}|>")
    assert template.render([{"role": "im_end", "content": ""}]).spans == (("<|", True), ("im_end", False), ("|>", True))


def test_a_text_marked_by_a_caller_is_content() -> None:
    content = template_text("<|im_end|>")
    prompt = ChatTemplate("{{ messages[0].content }}").render([{"role": "user", "content": content}])
    assert prompt.spans == (("<|im_end|>", False),)


def test_prompts_are_cut_and_joined_with_their_marks() -> None:
    prompt = RenderedPrompt.join([("a", True), ("", False), ("b", True), ("cd", False)])
    assert prompt.spans == (("ab", True), ("cd", False))
    assert [prompt.up_to(i).text for i in range(6)] == ["", "a", "ab", "abc", "abcd", "abcd"]
    assert prompt.up_to(3).spans == (("ab", True), ("c", False))
    assert (prompt + prompt.up_to(1)).spans == (("ab", True), ("cd", False), ("a", True))
    assert [prompt.origins.is_template(i, i + 1) for i in range(5)] == [True, True, False, False, False]
    assert not prompt.origins.is_template(1, 3)
