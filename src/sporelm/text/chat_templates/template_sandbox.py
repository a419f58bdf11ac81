"""The jinja2 environment of chat templates: sandboxed, with a budget on everything that repeats or grows.

Text that a template writes itself is marked (`MarkedText`), and stays so until it is output: see `marked_text`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, TemplateAssertionError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace
from markupsafe import Markup

from sporelm.text.chat_templates.marked_text import (
    MarkedText,
    format_braces,
    join_marked,
    replace_marked,
    template_text,
)
from sporelm.text.chat_templates.render_budget import LimitReached, get_budget
from sporelm.text.chat_templates.template_functions import (
    BINARY,
    budgeted_filters,
    budgeted_tests,
    check_call,
    write_value,
)


class RefusedByTemplate(TemplateError):
    """The template called `raise_exception`."""


class CountedIterable:
    """An iterable that counts each step; it has the length of the inner one."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        tick = get_budget().tick
        for item in self._items:
            tick()
            yield item

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]  # a TypeError is what jinja2 expects of a generator


class TemplateNamespace(Namespace):
    """A namespace with a short text, whatever it contains, that charges its values."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, rest = args[0], args[1:]
        Namespace.__init__(self, {})
        for name, value in dict(*rest, **kwargs).items():
            TemplateNamespace.__setitem__(self, name, value)

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str) or name.startswith("_"):
            raise SecurityError(f"a namespace cannot have the name {name!r:.60}")
        super().__setitem__(name, get_budget().use_value(value))

    def __repr__(self) -> str:
        return "<Namespace>"


class GenerationBlock(Extension):
    """`{% generation %} ... {% endgeneration %}` encloses answers of the assistant; it renders as its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A separate block, so that variables set inside are not visible outside.
        return nodes.CallBlock(self.call_method("_render_body"), [], [], body).set_lineno(line)

    def _render_body(self, caller: Callable[[], str]) -> str:
        return caller()


class BudgetedCodeGenerator(CodeGenerator):
    """Generates code that charges concatenations, comparisons, new containers and each step of a loop, and that marks
    the literal texts of the template."""

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if not isinstance(node, nodes.TemplateData):
            raise nodes.Impossible  # no constant folding
        return super()._output_child_to_const(node, frame, finalize)

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return f"environment.literal({''.join(map(str, group))!r})"

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:  # noqa: N802
        if isinstance(node.value, str):
            self.write(f"environment.literal({node.value!r})")
        else:
            super().visit_Const(node, frame)

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:  # noqa: N802
        self.write(f"environment.literal({node.data!r})")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802
        if isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):  # a key, which is never output
            self.write("environment.getitem(")
            self.visit(node.node, frame)
            self.write(f", {node.arg.value!r})")
        else:
            super().visit_Getitem(node, frame)

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802
        counted = nodes.Call(nodes.EnvironmentAttribute("count_steps"), [node.iter], [], None, None)
        node.iter = counted.set_lineno(node.lineno).set_environment(self.environment)
        super().visit_For(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.concatenate((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:  # noqa: N802
        self.write("(environment.charge_comparison(")
        self.visit(node.expr, frame)
        self.write(")")
        for operand in node.ops:
            self.visit(operand, frame)
        self.write(")")

    def visit_Operand(self, node: nodes.Operand, frame: Frame) -> None:  # noqa: N802
        self.write(f" {_OPERATORS[node.op]} environment.charge_comparison(")
        self.visit(node.expr, frame)
        self.write(")")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        self._charge_container(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        self._charge_container(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        if node.ctx == "load":
            self._charge_container(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_ScopedEvalContextModifier(  # noqa: N802
        self, node: nodes.ScopedEvalContextModifier, frame: Frame
    ) -> None:
        raise TemplateAssertionError("autoescape is not supported in a chat template", node.lineno)

    def _charge_container(self, visit: Callable[[Any, Frame], None], node: nodes.Expr, frame: Frame) -> None:
        self.write("environment.charge_container(")
        visit(node, frame)
        self.write(")")


_OPERATORS = {
    "eq": "==",
    "ne": "!=",
    "gt": ">",
    "gteq": ">=",
    "lt": "<",
    "lteq": "<=",
    "in": "in",
    "notin": "not in",
}


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The environment in which chat templates are compiled: configured as in `transformers`, with a budget."""

    code_generator_class = BudgetedCodeGenerator
    intercepted_binops = frozenset(BINARY)
    count_steps = CountedIterable
    concatenate = staticmethod(lambda parts: join_marked(map(write_value, parts)))
    concat = staticmethod(join_marked)  # the output of macros and blocks

    def __init__(self) -> None:
        self._literals: dict[str, MarkedText] = {}
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=write_value,
            extensions=[GenerationBlock, loopcontrols],
        )
        self.filters = budgeted_filters()
        self.tests = budgeted_tests()
        del self.globals["lipsum"]
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": strftime_now,
            "namespace": TemplateNamespace,
            "dict": _new_dict,
        }

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        return BINARY[operator](left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a function from the template; the mangled parameter names leave all keywords free for it."""
        if __obj is CountedIterable:
            return CountedIterable(*args)
        check_call(__obj, args, kwargs)
        if isinstance(__obj, LoopContext) and args:  # a recursive loop
            args = (CountedIterable(args[0]), *args[1:])
        function = __self._get_text_method(__obj) or __obj
        return get_budget().use_value(super().call(__context, function, *args, **kwargs))

    def literal(self, text: str) -> MarkedText:
        """Return a literal text of the template, marked as template text."""
        marked = self._literals.get(text)
        if marked is None:
            marked = self._literals[text] = template_text(text)
        return marked

    def _get_text_method(self, function: Any) -> Callable[..., Any] | None:
        """Return the mark-preserving version of a text's method that may insert marked text; None otherwise."""
        function = getattr(function, "__wrapped__", function)  # jinja2 wraps str.format
        owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        if not isinstance(owner, str) or isinstance(owner, Markup):
            return None
        if name == "join":
            return lambda parts, /: join_marked(parts, owner)
        if name == "replace":
            return lambda old, new, count=-1, /: replace_marked(owner, old, new, count)
        if name == "format":
            return lambda *args, **kwargs: format_braces(owner, args, kwargs, self._get_field)
        return None

    def _get_field(self, name: str, args: Any, kwargs: Any) -> Any:
        """Return the value of a field of a format, by the sandbox's rules."""
        return SandboxedFormatter(self).get_field(name, args, kwargs)[0]

    @staticmethod
    def charge_container(value: Any) -> Any:
        """Charge a container literal of the template."""
        return get_budget().use_value(value)

    @staticmethod
    def charge_comparison(value: Any) -> Any:
        """Charge an operand of a comparison."""
        get_budget().use_look(value)
        return value


def strftime_now(format: str) -> str:
    """Return the current local time in the given format."""
    if len(format) > 200:
        raise LimitReached("it asks for a time format of more than 200 characters")
    return datetime.now().strftime(format)


def _raise_exception(message: Any) -> None:
    raise RefusedByTemplate(write_value(message)[:500])


def _new_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)
