"""Operators, methods, filters and tests of chat templates, each charged before it creates a large value."""

import json
import operator
import re
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from jinja2.filters import FILTERS
from jinja2.tests import TESTS

from sporelm.text.chat_templates.marked_text import (
    add,
    as_markup,
    as_text,
    escape_marked,
    format_percent,
    is_markup,
    join_marked,
    replace_marked,
    with_marks_of,
)
from sporelm.text.chat_templates.render_budget import CONTAINERS, MAX_INTEGER_BITS, VALUE_WORK, LimitReached, get_budget

MAX_WIDTH = 10_000  # for padding, indenting, rounding and truncating
# Filters for web pages, or without a limit; chat templates do not need them.
_EXCLUDED_FILTERS = {"urlize", "xmlattr", "striptags", "pprint", "wordwrap", "random", "filesizeformat"}
# Filters that read the structure of a value, not all the text in it.
_STRUCTURAL = {"first", "last", "length", "count", "default", "d", "items", "attr", "safe"}
_STRUCTURAL |= {"map", "select", "reject", "selectattr", "rejectattr"}
_PADDING = {"center", "ljust", "rjust", "zfill", "expandtabs", "to_bytes"}
_SPLITTING = {"split", "rsplit", "splitlines"}
_BLOCKED = {"translate", "maketrans", "format_map"}
_SPLIT_WORK = 48  # of a piece of a split text, as an object
_DIGITS = re.compile(r"\d+")
_WORD_BEGINNINGS = re.compile(r"([-\s({\[<]+)")
_NESTED_FIELD = re.compile(r"\{[^{}]*\{")


def budgeted_filters() -> dict[str, Any]:
    """Return the filters that templates may use, by name."""
    filters: dict[str, Any] = {name: function for name, function in FILTERS.items() if name not in _EXCLUDED_FILTERS}
    filters |= {"tojson": to_json, "sum": _sum, "join": _join, "replace": _replace}
    filters |= {"string": as_text, "title": _title, "indent": _indent, "format": _format, "safe": _safe}
    filters |= dict.fromkeys(("escape", "e", "forceescape"), _escape)
    return {name: _budgeted_filter(name, function) for name, function in filters.items()}


def budgeted_tests() -> dict[str, Any]:
    """Return the tests that templates may use, by name."""
    tests: dict[str, Any] = dict(TESTS)
    return {name: _budgeted_test(function) for name, function in tests.items()}


def to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Return JSON as chat templates expect it: without ASCII or HTML escapes."""
    if indent is not None:
        width = len(indent) if isinstance(indent, str) else int(indent)
        if width > 64:
            raise LimitReached(f"it asks for JSON indented by {width}, more than 64")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def write_value(value: Any) -> str:
    """Return a value as text, as `{{ value }}` writes it, and charge it. Marked text keeps its marks."""
    get_budget().use_as_text(value)
    return as_text(value)


def check_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Charge a call before it happens. Raises LimitReached for one that would create a huge value."""
    budget = get_budget()
    values = (*args, *kwargs.values())
    for value in values:
        budget.use_look(value)
    function = getattr(function, "__wrapped__", function)  # jinja2 wraps str.format
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__name__", "")
    if isinstance(owner, CONTAINERS):
        budget.use_look(owner)
    elif isinstance(owner, (str, bytes)):
        _check_text_method(owner, name, values)
    elif isinstance(owner, (int, float)) and name in _PADDING:
        _check_widths(values, name)


def _check_text_method(owner: str | bytes, name: str, values: tuple[Any, ...]) -> None:
    budget = get_budget()
    budget.use_look(owner)
    tab, spaces, newline = ("\t", " ", "\n") if isinstance(owner, str) else (b"\t", b" ", b"\n")
    if name in _BLOCKED:
        raise LimitReached(f"it calls {name}, which chat templates may not")
    if name in _PADDING:
        _check_widths(values, name)
        if name == "expandtabs":
            budget.use(owner.count(tab) * max([8, *(value for value in values if isinstance(value, int))]))  # type: ignore[arg-type]
    elif name in _SPLITTING:
        has_sep = isinstance(values[0], type(owner)) and len(values[0]) if values else 0
        pieces = owner.count(values[0]) if has_sep else owner.count(spaces) + owner.count(newline) + owner.count(tab)  # type: ignore[arg-type]
        budget.use(_SPLIT_WORK * pieces)
    elif name == "format":
        _check_format(str(owner), values)
    elif name == "replace" and len(values) > 1 and all(isinstance(value, type(owner)) for value in values[:2]):
        budget.use((owner.count(values[0]) + 1) * len(values[1]))
    elif name == "join" and values:
        parts = values[0]
        budget.use_as_text(parts)
        budget.use(len(owner) * (len(parts) if hasattr(parts, "__len__") else MAX_WIDTH))


def _check_format(form: str, values: Iterable[Any]) -> None:
    """Limit the result of a format (% or braces): its widths, and each value once for each field."""
    num_fields = form.count("%") + form.count("{")
    for digits in _DIGITS.findall(form):
        if len(digits) > 5 or int(digits) > MAX_WIDTH:
            raise LimitReached(f"it formats to a width of more than {MAX_WIDTH}")
    has_dynamic_widths = "*" in form or _NESTED_FIELD.search(form) is not None
    budget = get_budget()
    if has_dynamic_widths or _DIGITS.search(form):
        budget.use(num_fields * MAX_WIDTH)
    for value in values:
        if has_dynamic_widths:
            _check_widths([value], "a format")
        budget.use_as_text(value, num_fields)


def _check_widths(values: Iterable[Any], name: str) -> None:
    for value in values:
        if isinstance(value, (int, float)) and abs(value) > MAX_WIDTH:
            raise LimitReached(f"it gives {name} the number {value!r:.30}, more than {MAX_WIDTH}")


def _budgeted_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter with limits on its numbers, that charges its input and its result."""

    @wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        budget = get_budget()
        value, *rest = args[1:] if hasattr(function, "jinja_pass_arg") else args
        options = (*rest, *kwargs.values())
        if name not in ("int", "float", "default", "d"):
            _check_widths(options, name)
        for option in options:
            budget.use_look(option)
        if name == "format":
            _check_format(str(value), options)
        elif name == "indent":
            width = rest[0] if rest else kwargs.get("width", 4)
            budget.use(write_value(value).count("\n") * (len(width) if isinstance(width, str) else 1 + int(width)))
        elif name == "list" and isinstance(value, str):
            budget.use(VALUE_WORK * len(value))
        if name not in _STRUCTURAL:
            budget.use_as_text(value)
        return budget.use_value(function(*args, **kwargs))

    return bounded


def _budgeted_test(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        budget = get_budget()
        budget.tick()
        for value in (*args, *kwargs.values()):
            budget.use_look(value)
        return function(*args, **kwargs)

    return bounded


def _sum(items: Iterable[Any], attribute: Any = None, start: Any = 0) -> Any:
    values = [item if attribute is None else item[attribute] for item in items]
    if not all(isinstance(value, (int, float)) for value in (*values, start)):
        raise TypeError("sum takes numbers only")
    return sum(values, start)


def _join(items: Iterable[Any], d: Any = "", attribute: Any = None) -> str:
    parts = [write_value(item if attribute is None else item[attribute]) for item in items]
    between = write_value(d)
    get_budget().use(len(between) * len(parts))
    return join_marked(parts, between)


def _replace(text: Any, old: Any, new: Any, count: int | None = None) -> str:
    whole, before, after = write_value(text), write_value(old), write_value(new)
    get_budget().use((whole.count(before) + 1) * len(after))
    return replace_marked(whole, before, after, -1 if count is None else count)


def _title(text: Any) -> str:
    """jinja2's own filter: a letter after any of these characters becomes a capital."""
    whole = write_value(text)
    parts = _WORD_BEGINNINGS.split(whole)
    return with_marks_of(whole, "".join(part[0].upper() + part[1:].lower() for part in parts if part))


def _indent(text: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """jinja2's own filter, with marks."""
    margin = width if isinstance(width, str) else " " * int(width)
    lines = join_marked((write_value(text), "\n")).splitlines()
    if blank:
        lines[1:] = [join_marked((margin, line)) for line in lines[1:]]
    else:
        lines[1:] = [join_marked((margin, line)) if line else line for line in lines[1:]]
    return join_marked(([margin] if first else []) + [join_marked(lines, "\n")])


def _format(form: Any, *args: Any, **kwargs: Any) -> str:
    if args and kwargs:
        raise TypeError("format takes either positional or named values")
    return format_percent(write_value(form), kwargs or args)


def _safe(value: Any) -> str:
    return as_markup(write_value(value))


def _escape(value: Any) -> str:
    return escape_marked(write_value(value))


def _add(left: Any, right: Any) -> Any:
    if isinstance(left, str) and isinstance(right, str):
        return get_budget().use_value(add(left, right))
    return get_budget().use_value(left + right)


def _multiply(left: Any, right: Any) -> Any:
    for items, times in ((left, right), (right, left)):
        if isinstance(items, (str, bytes, list, tuple)) and isinstance(times, int):
            each = 1 if isinstance(items, (str, bytes)) else VALUE_WORK
            get_budget().use((len(items) + 1) * max(times, 0) * each)
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())
    return get_budget().use_value(left * right)


def _power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * abs(right))
    return get_budget().use_value(left**right)


def _remainder(left: Any, right: Any) -> Any:
    if isinstance(left, (str, bytes)):
        values = right if isinstance(right, tuple) else tuple(right.values()) if isinstance(right, dict) else (right,)
        _check_format(str(left), (*values, right))
    if isinstance(left, str) and not is_markup(left):
        return get_budget().use_value(format_percent(left, right))
    return get_budget().use_value(operator.mod(left, right))


def _check_bits(bits: int) -> None:
    if bits > MAX_INTEGER_BITS:
        raise LimitReached(f"it creates an integer of more than {MAX_INTEGER_BITS} bits")


BINARY: dict[str, Callable[[Any, Any], Any]] = {"+": _add, "*": _multiply, "**": _power, "%": _remainder}
