"""All errors that a caller can get, as one tree.

SporeError
├── ModelError            a model, or a part of it, cannot be used
│   ├── ModelNotFound     no file, folder or stored model has the name
│   ├── ModelFileError    the file is damaged, truncated or hostile
│   └── UnsupportedModel  valid, but with an architecture, type or option that is not supported
├── RequestError          a request is invalid or cannot be served
│   ├── UsageError        an argument or option is missing, invalid, or excludes another, whatever the files contain
│   ├── ContextOverflow   more tokens than the context holds
│   └── QueueFull         too many requests are waiting
├── MemoryShortage        more memory is needed than is available
├── BackendError          a back-end is missing, or failed
│   ├── ContextError      a device resource was used outside its context
│   ├── UnsupportedOp     it has no kernel for an op, and the reference cannot run it instead
│   └── RankLost          another rank of the group failed, stalled, or was aborted
├── RemoteError           another server is unreachable, rejects a request, or sends an invalid response
├── OpError               the arguments of an op do not fit its signature
└── GraphError            a traced graph breaks the rules

A message is one line: the value, the limit and the remedy. Below the command line it names an option of `LLM` or
`SamplingParams` as "the option max_context"; the command line and the server put in their own names, by
`rename_options`.
"""

import re
from os import path
from shlex import quote
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_OPTION = re.compile(r"\bthe option ([a-z]+(?:_[a-z]+)*)\b")


def install_command(extra: str) -> str:
    """Return the command that installs an extra: from the checkout that is running, else from the package index."""
    checkout = path.dirname(path.dirname(path.dirname(path.abspath(__file__))))
    if not path.isfile(path.join(checkout, "pyproject.toml")) or not path.isdir(path.join(checkout, "src", "sporelm")):
        return f"pip install 'sporelm[{extra}]'"
    return f"pip install -e {quote(f'{checkout}[{extra}]')}"


class SporeError(Exception):
    """The root of all errors meant for users."""


class ModelError(SporeError):
    """A model, or a part of it, cannot be used."""


class ModelNotFound(ModelError):
    """No file, folder or stored model has the name."""


class ModelFileError(ModelError):
    """A file is damaged or truncated, or its header claims more than its size allows."""


class UnsupportedModel(ModelError):
    """A valid model has an architecture, tensor type or option that is not supported."""


class RequestError(SporeError):
    """A request is invalid or cannot be served."""


class UsageError(RequestError):
    """A command's argument or option is missing, invalid, or excludes another; `spore` exits with code 2."""


class ContextOverflow(RequestError):
    """A prompt has more tokens than the context holds; prompts are never truncated.

    fact     the numbers without a remedy, because the remedies of a server's clients differ
    larger   the largest possible context in tokens; 0: it cannot be larger
    rolls    whether the request would fit with a context shift (`SamplingParams.roll`)
    tokens   number of tokens of the prompt
    context  size of the context in tokens; 0: the text was refused before it was tokenized
    """

    def __init__(
        self,
        message: str,
        *,
        fact: str = "",
        larger: int = 0,
        rolls: bool = False,
        tokens: int = 0,
        context: int = 0,
    ) -> None:
        super().__init__(message)
        self.fact = fact
        self.larger = larger
        self.rolls = rolls
        self.tokens = tokens
        self.context = context


class QueueFull(RequestError):
    """The queue of waiting requests is full."""


class MemoryShortage(SporeError):
    """More memory is needed than the machine has, or than a limit allows."""


class BackendError(SporeError):
    """A back-end is missing, or failed."""


class ContextError(BackendError):
    """A device resource was used outside the context that owns it."""


class UnsupportedOp(BackendError):
    """A back-end has no kernel for an op, and the reference cannot run it instead."""


class RankLost(BackendError):
    """Another rank of the group failed, stalled, or was aborted: no step can complete until the group is restarted."""


class RemoteError(SporeError):
    """Another server is unreachable, rejects a request, or sends an invalid response."""


class OpError(SporeError):
    """The arguments of an op do not fit its signature."""


class GraphError(SporeError):
    """A traced graph breaks the rules of legal graphs."""


def safe_repr(value: object, max_chars: int = 60) -> str:
    """Return the repr of a caller's value for an error message: one line of at most `max_chars` characters."""
    try:
        text = repr(value)
    except Exception:  # very long integers have no repr, and an object's own may fail
        text = f"a {type(value).__name__}"
    return " ".join(text[:max_chars].split())


def rename_options(message: str, find_name: "Callable[[str], str | None]") -> str:
    """Return a message with another name in place of each "the option NAME" for which `find_name` has one."""
    return _OPTION.sub(lambda found: find_name(found[1]) or found[0], message)


def thread_shortage(error: BaseException) -> MemoryShortage | None:
    """Return the error for users if a thread could not be started; None for any other error.

    Python raises a bare RuntimeError with this message on every system.
    """
    if type(error) is not RuntimeError or "can't start new thread" not in str(error):
        return None
    return MemoryShortage(
        "threads: cannot start another one (the system's limit on memory or processes is reached). Use fewer with "
        "the option threads or SPORE_THREADS, or raise the limit (ulimit -v, ulimit -u)"
    )
