"""Errors of libraries as the end of a one-line message."""


def summarize_error(error: BaseException) -> str:
    """Return an error's message in one line of at most 200 characters; its type where it has no message."""
    message = " ".join(str(error).split()) or type(error).__name__
    return message if len(message) <= 200 else message[:197] + "..."
