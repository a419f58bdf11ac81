"""Text in a chat template whose characters keep their origin through every operation.

During rendering a plain `str` is content. Text that the template wrote is `MarkedText`, and so is any combination of
both. Every text operation either keeps the mark of each character or returns content: a mark can be lost but never
gained. So content can be split, trimmed, replaced and joined without becoming the template's own text.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from string import Formatter
from types import NoneType
from typing import Any, SupportsIndex

from markupsafe import Markup, escape

from sporelm.text.chat_templates.rendered_prompt import CONTENT, TEMPLATE, spans_of

_MARK = (bytes([CONTENT]), bytes([TEMPLATE]))
_WRITTEN_BY_TEMPLATE = (int, float, bool, NoneType)  # values whose text can hold nothing but themselves
_CONVERSION = re.compile(r"%(?:\((?P<name>[^()]*)\))?(?P<flags>[#0\- +]*(?:\d+)?(?:\.\d+)?[hlL]?)(?P<kind>[a-zA-Z%])")


class MarkedText(str):
    """A text with a mark, CONTENT or TEMPLATE, for each of its characters.

    It equals the same plain text. Methods that are not overridden give plain text: content.
    """

    __slots__ = ("_is_markup", "_marks")
    _marks: bytes
    _is_markup: bool

    def __new__(cls, text: str = "", marks: bytes | None = None, *, is_markup: bool = False) -> "MarkedText":
        """
        marks        one byte for each character; None: all content
        is_markup    jinja2 treats it as HTML: text added to it is escaped
        """
        marked = super().__new__(cls, text)
        marked._marks = bytes(len(marked)) if marks is None else marks
        marked._is_markup = is_markup
        if len(marked._marks) != len(marked):
            raise ValueError("a marked text needs one mark for each character")
        return marked

    def spans(self) -> list[tuple[str, bool]]:
        """Return the text in spans (text, is_template)."""
        return spans_of(plain(self), self._marks)

    def __str__(self) -> str:
        return self  # what writes values as text keeps the marks

    def __iter__(self) -> Iterator[str]:
        for i in range(len(self)):
            yield self[i]

    def __getitem__(self, key: SupportsIndex | slice) -> "MarkedText":
        if isinstance(key, slice):
            return MarkedText(super().__getitem__(key), self._marks[key])
        index = range(len(self))[key]
        return MarkedText(super().__getitem__(index), self._marks[index : index + 1])

    def __add__(self, other: str) -> str:
        return join_marked((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        return join_marked((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, times: SupportsIndex) -> "MarkedText":
        count = max(times.__index__(), 0)
        return MarkedText(plain(self) * count, self._marks * count)

    __rmul__ = __mul__

    def __mod__(self, values: Any) -> str:
        return format_percent(self, values)

    def strip(self, chars: str | None = None, /) -> "MarkedText":
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> "MarkedText":
        return self[len(self) - len(super().lstrip(chars)) :]

    def rstrip(self, chars: str | None = None, /) -> "MarkedText":
        return self[: len(super().rstrip(chars))]

    def removeprefix(self, prefix: str, /) -> "MarkedText":
        return self[len(prefix) :] if prefix and self.startswith(prefix) else self

    def removesuffix(self, suffix: str, /) -> "MarkedText":
        return self[: len(self) - len(suffix)] if suffix and self.endswith(suffix) else self

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._pieces(super().split(sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._pieces(super().rsplit(sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[str]:
        found: list[str] = []
        start = 0
        for line, whole in zip(super().splitlines(keepends), super().splitlines(keepends=True), strict=True):
            found.append(self[start : start + len(line)])
            start += len(whole)
        return found

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        return self._split_around(self.find(sep), sep) if super().partition(sep)[1] else (self, "", "")

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        return self._split_around(self.rfind(sep), sep) if super().rpartition(sep)[1] else ("", "", self)

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> "MarkedText":
        return replace_marked(self, old, new, count.__index__())

    def join(self, parts: Iterable[str], /) -> str:
        return join_marked(parts, self)

    def format(self, *args: Any, **kwargs: Any) -> str:
        return format_braces(self, args, kwargs, _no_field)

    def upper(self) -> "MarkedText":
        return with_marks_of(self, super().upper())

    def lower(self) -> "MarkedText":
        return with_marks_of(self, super().lower())

    def capitalize(self) -> "MarkedText":
        return with_marks_of(self, super().capitalize())

    def title(self) -> "MarkedText":
        return with_marks_of(self, super().title())

    def swapcase(self) -> "MarkedText":
        return with_marks_of(self, super().swapcase())

    def casefold(self) -> "MarkedText":
        return with_marks_of(self, super().casefold())

    def ljust(self, width: SupportsIndex, fill: str = " ", /) -> "MarkedText":
        return self._padded(super().ljust(width, fill), 0)

    def rjust(self, width: SupportsIndex, fill: str = " ", /) -> "MarkedText":
        padded = super().rjust(width, fill)
        return self._padded(padded, len(padded) - len(self))

    def center(self, width: SupportsIndex, fill: str = " ", /) -> "MarkedText":
        padded = super().center(width, fill)
        missing = len(padded) - len(self)
        return self._padded(padded, missing // 2 + (missing & width.__index__() & 1))  # as CPython does

    def _padded(self, text: str, before: int) -> "MarkedText":
        return MarkedText(text, bytes(before) + self._marks + bytes(len(text) - before - len(self)))

    def _split_around(self, place: int, sep: str) -> tuple[str, str, str]:
        end = place + len(sep)
        return self[:place], self[place:end], self[end:]

    def _pieces(self, pieces: list[str], sep: str | None) -> list[str]:
        """Return our own parts that are `pieces`, which stand in order, `sep` or spaces between them."""
        found: list[str] = []
        start = 0
        for piece in pieces:
            if sep is None:
                start = self.find(piece, start)
            found.append(self[start : start + len(piece)])
            start += len(piece) + len(sep or "")
        return found


def plain(text: str) -> str:
    """Return a text as a plain `str`: content."""
    return str.__str__(text)


def template_text(text: str) -> MarkedText:
    """Return a text marked as template text."""
    return MarkedText(text, _MARK[TEMPLATE] * len(text))


def marks_of(text: str) -> bytes:
    """Return the mark of each character."""
    return text._marks if isinstance(text, MarkedText) else bytes(len(text))


def with_marks_of(text: str, changed: str) -> MarkedText:
    """Return `changed`, which is `text` in other letters, with its marks."""
    marks = marks_of(text)
    if len(changed) != len(marks):  # a letter became two: its position is not known
        marks = bytes([min(marks, default=CONTENT)]) * len(changed)
    return MarkedText(changed, marks)


def as_text(value: Any) -> str:
    """Return a value as text: content, but for what is the template's own, and for numbers, True, False and None."""
    if isinstance(value, str):
        return value
    text = str(value)
    return template_text(text) if type(value) in _WRITTEN_BY_TEMPLATE else text


def join_marked(parts: Iterable[str], between: str = "") -> str:
    """Return texts joined, each character with its mark."""
    listed = list(parts)
    text = plain(between).join(listed)
    if not any(isinstance(part, MarkedText) for part in (between, *listed)):
        return text
    return MarkedText(text, marks_of(between).join(map(marks_of, listed)))


def replace_marked(text: str, old: str, new: str, count: int = -1) -> MarkedText:
    """Return `str.replace` with marks: those of `new` where it stands, the others unchanged."""
    whole, before, after = plain(text), plain(old), plain(new)
    result = whole.replace(before, after, count)
    marks, ours = marks_of(text), marks_of(new)
    if not before:  # `new` before each character, and at the end
        places = list(range(len(whole) + 1))
    else:
        places = []
        start = 0
        while (place := whole.find(before, start)) >= 0:
            places.append(place)
            start = place + len(before)
    if count >= 0:
        places = places[:count]
    found = []
    start = 0
    for place in places:
        found += [marks[start:place], ours]
        start = place + len(before)
    return MarkedText(result, b"".join([*found, marks[start:]]))


def escape_marked(text: str) -> str:
    """Return jinja2's `escape` of a text: HTML, each character with the mark of that it stands for."""
    if not isinstance(text, MarkedText):
        return escape(text)
    if text._is_markup:
        return text
    parts = [(str(escape(part)), is_template) for part, is_template in text.spans()]
    marks = b"".join(_MARK[is_template] * len(part) for part, is_template in parts)
    return MarkedText("".join(part for part, _ in parts), marks, is_markup=True)


def as_markup(text: str) -> str:
    """Return jinja2's `safe` of a text."""
    if not isinstance(text, MarkedText):
        return Markup(text)
    return MarkedText(plain(text), text._marks, is_markup=True)


def add(left: str, right: str) -> str:
    """Return two texts joined; beside HTML, as `safe` and `escape` give it, the other is escaped."""
    if not (is_markup(left) or is_markup(right)):
        return join_marked((left, right))
    both = [each if is_markup(each) else escape_marked(each) for each in (left, right)]
    if not any(isinstance(each, MarkedText) for each in both):
        return Markup("").join(both)
    return MarkedText("".join(both), b"".join(map(marks_of, both)), is_markup=True)


def is_markup(text: object) -> bool:
    """Whether jinja2 takes a text for HTML."""
    return isinstance(text, Markup) or (isinstance(text, MarkedText) and text._is_markup)


def format_percent(form: str, values: Any) -> str:
    """Return `form % values` with marks: of what is put in, and of the form around it."""
    text = plain(form)
    bare = _bare(values)
    result = text % bare
    if not isinstance(form, MarkedText) or "*" in text:
        return result
    queue = list(values) if isinstance(values, tuple) else [values]
    parts: list[str] = []
    start = 0
    for match in _CONVERSION.finditer(text):
        parts.append(form[start : match.start()])
        start = match.end()
        if match["kind"] == "%":
            parts.append("%")
            continue
        value = values[match["name"]] if match["name"] is not None else queue.pop(0)
        if match["kind"] == "s" and not match["flags"]:
            parts.append(as_text(value))
        else:
            written = f"%{match['flags']}{match['kind']}" % (_bare(value),)
            is_own = _is_number(value) and match["kind"] != "c"  # with %c content chooses the letter
            parts.append(template_text(written) if is_own else written)
    joined = join_marked([*parts, form[start:]])
    return joined if plain(joined) == result else result


def _bare(values: Any) -> Any:
    """Return values with plain texts in place of marked ones."""
    if isinstance(values, str):
        return plain(values)
    if isinstance(values, tuple):
        return tuple(map(_bare, values))
    if isinstance(values, Mapping):
        return {name: _bare(value) for name, value in values.items()}
    return values


FieldOf = Callable[[str, Sequence[Any], Mapping[str, Any]], Any]


def format_braces(
    form: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    field_of: FieldOf,
    numbers: Iterator[int] | None = None,
) -> str:
    """Return `form.format(*args, **kwargs)` with marks: of what is put in, and of the form around it.

    field_of    the value of a field's name, "0.name[1]" say; it raises where the name is not allowed
    numbers     of fields without a name; None: from 0
    """
    numbers = itertools.count() if numbers is None else numbers
    parts: list[str] = []
    # Braces are written twice for themselves, so places do not tell marks: the form counts as one.
    own = isinstance(form, MarkedText) and min(form._marks, default=CONTENT) == TEMPLATE
    for literal, name, spec, conversion in Formatter().parse(plain(form)):
        parts.append(template_text(literal) if own else literal)
        if name is None:
            continue
        if not name or name[0] in ".[":
            name = f"{next(numbers)}{name}"
        value = field_of(name, args, kwargs)
        if conversion:
            value = {"s": as_text, "r": repr, "a": ascii}[conversion](value)
        if spec:
            inner = format_braces(spec, args, kwargs, field_of, numbers)
            written = format(_bare(value), plain(inner))
            # A fill character or, with the type c, the number itself may come from content.
            is_own = own and _is_number(value) and "{" not in spec and not spec.endswith("c")
            parts.append(template_text(written) if is_own else written)
        else:
            parts.append(as_text(value))
    return join_marked(parts)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float, bool)


def _no_field(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return args[int(name)] if name.isdecimal() else kwargs[name]
