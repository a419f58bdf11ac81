"""Text out of files and from servers, made fit for a terminal."""


def plain(text: str) -> str:
    """Text out of a file as one line that cannot steer a terminal: what is not printable is escaped."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def counted(count: int, word: str) -> str:
    """So many of something: "1 token", "2 tokens"."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
