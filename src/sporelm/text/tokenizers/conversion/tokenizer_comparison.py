"""Compares two tokenizers on texts that cover the rules of tokenizers."""

from collections.abc import Callable, Mapping

from sporelm.errors import RequestError
from sporelm.text.tokenizers.conversion.pre_tokenizer_hashes import CHECK_TEXT

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


def find_difference(expected: Encode, actual: Encode) -> str | None:
    """Return the first of `TEXTS` whose ids differ, BOS and EOS included; None if all agree.

    Texts that one of the tokenizers cannot represent are skipped.
    """
    return next((text for text in TEXTS if _differ(expected, actual, text)), None)


def find_difference_around_tokens(names: Mapping[str, str], expected: Encode, actual: Encode) -> str | None:
    """Return a text around a named token, of `names`, whose ids differ; None if they agree."""
    for name in dict.fromkeys(names[key] for key in ("eos_token", "bos_token", "sep_token") if key in names):
        if _differ(expected, actual, text := f"One two{name}three {name} four"):
            return text
    return None


def _differ(expected: Encode, actual: Encode, text: str) -> bool:
    try:
        return expected(text) != actual(text)
    except RequestError:  # one of them has no token for a byte of it
        return False
