"""Whether two tokenizers make the same ids of texts that show how a tokenizer works."""

from collections.abc import Callable, Mapping

from sporelm.errors import RequestError
from sporelm.text.exchange.known_vocabularies import CHECK_TEXT

TEXTS = (
    CHECK_TEXT,
    "Hello world! It's 12:30, isn't it? We'll see; they've GONE.",
    " leading space",
    "  two, and trailing  ",
    "\n\nnew lines\r\n\ttabs \n \n",
    "def f(x):\n    return x ** 2  # comment\n\n\nprint(f(1234567890))",
    "https://example.org/a-b_c?d=e&f=%20 user@example.org <b>bold</b> {\"key\": [1, 2.5e-3]}",
    "Größe, naïve, œuvre, Łódź, çà, Ñandú; ÀÉÎÕÜ",
    "Привет, мир! Как дела? 你好，世界。こんにちは 안녕하세요 שלום مرحبا नमस्ते สวัสดี",
    "🙂🚀👨‍👩‍👧 ½ ² ∑ → “quoted” ‘single’ – — … €100",
    "aaaaaaaaaaaaaaaaaaaaaaaa        bbbbbbbb!!!!!!!!????....----====",
    "camelCaseWord snake_case_word UPPERCASE MiXeD x1y2z3 3D 2nd 1,000,000.00",
    "",
)  # fmt: skip


Encode = Callable[[str], list[int]]


def first_difference(wanted: Encode, found: Encode) -> str | None:
    """The first of `TEXTS` whose ids differ, begun and ended as each tokenizer does; None where all agree.

    Texts that one of them cannot write are left out.
    """
    return next((text for text in TEXTS if _differ(wanted, found, text)), None)


def first_difference_around(names: Mapping[str, str], wanted: Encode, found: Encode) -> str | None:
    """A text around a named token, of `names`, whose ids differ; None where they agree."""
    for name in dict.fromkeys(names[key] for key in ("eos_token", "bos_token", "sep_token") if key in names):
        if _differ(wanted, found, text := f"One two{name}three {name} four"):
            return text
    return None


def _differ(wanted: Encode, found: Encode, text: str) -> bool:
    try:
        return wanted(text) != found(text)
    except RequestError:  # one of them has no tokens for a byte of it
        return False
