"""Every error a caller can meet, as one tree.

SporeError
├── ModelError            a model, or a part of it, cannot be used
│   ├── ModelNotFound     no file, folder or name like that
│   ├── ModelFileError    the file is damaged, truncated or hostile
│   └── UnsupportedModel  well formed, but of an architecture, type or option we lack
├── RequestError          the caller asked for something that cannot be done
│   ├── UsageError        an argument or option is missing, wrong, or excludes another, whatever the files hold
│   ├── ContextOverflow   more tokens than the context holds
│   └── QueueFull         too many requests wait
├── MemoryShortage        more memory is needed than there is
├── BackendError          a back-end is missing, or failed
│   └── ContextError      a device resource used outside its context
├── RemoteError           a server that was asked cannot be reached, refuses, or sends what is no answer
├── OpError               an op's arguments do not fit its signature
└── GraphError            a traced graph breaks the rules

A message is one line: the value, the limit and the remedy.
"""


class SporeError(Exception):
    """Root of every error that is meant for a user."""


class ModelError(SporeError):
    """A model, or a part of it, cannot be used."""


class ModelNotFound(ModelError):
    """No file, folder or store entry answers to the name."""


class ModelFileError(ModelError):
    """A file is damaged, truncated, or claims what its size does not justify."""


class UnsupportedModel(ModelError):
    """A well-formed model of an architecture, tensor type or option that is not supported."""


class RequestError(SporeError):
    """A request holds a value that cannot be honoured."""


class UsageError(RequestError):
    """A command's argument or option is missing, wrong, or excludes another; `spore` ends with exit code 2."""


class ContextOverflow(RequestError):
    """A prompt holds more tokens than the context; it is never truncated.

    fact     the numbers, without a remedy: those of a server's clients are others
    larger   positions that the context could have; 0: no more
    rolls    whether what was asked could be done with a window that rolls
    tokens   of the prompt, and
    context  positions that the context has; 0: the text was refused before it was tokenized
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
        self.fact, self.larger, self.rolls, self.tokens, self.context = fact, larger, rolls, tokens, context


class QueueFull(RequestError):
    """So many requests wait that no more are taken."""


class MemoryShortage(SporeError):
    """More memory is needed than the machine, or the limit given, has."""


class BackendError(SporeError):
    """A back-end is missing, or failed."""


class ContextError(BackendError):
    """A device resource was used outside the context that owns it."""


class RemoteError(SporeError):
    """Another server cannot be reached, refuses a request, or sends what is no answer."""


class OpError(SporeError):
    """An op's arguments do not fit its signature."""


class GraphError(SporeError):
    """A traced graph breaks the rules of legal graphs."""


def shown(value: object, most: int = 60) -> str:
    """A value that a caller gave, as an error names it: at most so many characters of one line, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # a number of thousands of digits has none, and an object's own may fail
        text = f"a {type(value).__name__}"
    return " ".join(text[:most].split())


def thread_shortage(error: BaseException) -> MemoryShortage | None:
    """Return the user's error for a thread that could not be started; None for any other error.

    Python raises a bare RuntimeError with this message on every system.
    """
    if type(error) is not RuntimeError or "can't start new thread" not in str(error):
        return None
    return MemoryShortage(
        "threads: cannot start another one (the system's limit on memory or processes is reached). Use fewer with "
        "--threads or SPORE_THREADS, or raise the limit (ulimit -v, ulimit -u)"
    )
