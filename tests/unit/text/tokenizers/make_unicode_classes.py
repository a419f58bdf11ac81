"""Prints the runs of src/sporelm/text/tokenizers/unicode_classes.py, as the tokenizers library sees the characters.

Usage: python tests/unit/text/tokenizers/make_unicode_classes.py
"""

from itertools import groupby

from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

CATEGORIES = {
    "u": ("Lu", "Lt"),
    "l": ("Ll",),
    "o": ("Lm", "Lo"),
    "m": ("M",),
    "d": ("Nd",),
    "n": ("Nl", "No"),
    "c": ("Pc",),
    "p": ("Pd", "Ps", "Pe", "Pi", "Pf", "Po"),
    "y": ("S",),
}
SURROGATES = range(0xD800, 0xE000)
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def members(pattern: str) -> set[int]:
    """The code points that `pattern`, of one character, matches."""
    find = Split(Regex(pattern), "removed", invert=True).pre_tokenize_str
    found: set[int] = set()
    for start in range(0, 0x110000, 0x1000):
        text = "".join(chr(code) for code in range(start, start + 0x1000) if code not in SURROGATES)
        for piece, _ in find(text):
            found.update(map(ord, piece))
    return found


def base36(number: int) -> str:
    """`number` in base 36; nothing for one."""
    digits = ""
    while number > 1 or (number and digits):
        number, last = divmod(number, 36)
        digits = DIGITS[last] + digits
    return digits


def runs() -> str:
    """The classes from U+0080 on, each with how many code points have it."""
    classes = ["x"] * 0x110000
    for letter, categories in CATEGORIES.items():
        for code in members("[" + "".join(rf"\p{{{category}}}" for category in categories) + "]"):
            classes[code] = letter
    for code in members(r"\s"):
        classes[code] = "s"
    return "".join(letter.upper() + base36(len(list(run))) for letter, run in groupby(classes[128:]))


if __name__ == "__main__":
    written = runs()
    print("\n".join(written[start : start + 118] for start in range(0, len(written), 118)))
