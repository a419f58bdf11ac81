"""The entry of `spore`: finds the command's file, runs it, and turns every failure into one line and an exit code.

Exit codes: 0 done, 1 failed with a one-line reason (`--debug` for the traceback), 2 wrong usage, 130 stopped by Ctrl-C,
143 and 129 by SIGTERM and SIGHUP.
Nothing heavy is imported here, so that `spore --help` is instant.
"""

try:
    import atexit
    import os
    import signal
    import sys
    from contextlib import suppress
    from errno import ENOSPC
    from importlib import import_module
    from types import FrameType
    from typing import Protocol, cast

    from sporelm import __version__
    from sporelm.cli import interrupt, standard_streams
    from sporelm.cli.full_output import is_full_output
    from sporelm.cli.memory_errors import address_space_limit, is_memory_shortage, out_of_memory
    from sporelm.cli.parser import Parser
    from sporelm.cli.terminal_layout import fold, labelled, terminal_width
    from sporelm.errors import SporeError, UsageError, thread_shortage
except KeyboardInterrupt:  # of the program, which has begun nothing yet
    raise SystemExit(130) from None

_interrupted: list[bool] = []  # filled by Ctrl-C

COMMANDS = {
    "run": "complete a prompt",
    "chat": "talk with a model",
    "serve": "serve models over HTTP, and a chat in the browser",
    "bench": "measure the speed, beside the machine's limits and a peer",
    "bench serve": "measure a running server, ours or another's",
    "replay": "repeat a recorded run, and say whether the same comes out",
    "bench tune": "measure which register tiles of the CPU's kernels are fastest here",
    "eval": "measure the quality: perplexity, divergence from unquantized weights",
    "embed": "texts as vectors",
    "rerank": "put documents in order by how well they answer a query",
    "tokenize": "show the tokens of a text",
    "pull": "fetch a model into the store",
    "list": "list the models in the store",
    "rm": "remove models from the store",
    "info": "what a model is, the memory it needs, how fast it can be here",
    "doctor": "show hardware, back-ends and what is missing",
    "gguf": "show, check, compare and change model files",
    "gguf show": "header, metadata and tensors",
    "gguf show-data": "values, statistics and a histogram of tensors",
    "gguf verify": "check structure, metadata, values and hashes",
    "gguf diff": "how two models differ",
    "gguf split": "cut a model into several files",
    "gguf merge": "join the files of a split model",
    "gguf set-meta": "change metadata",
    "gguf convert": "change a model by steps: number formats, order, joined weights, filters",
    "gguf from-hf": "a Hugging Face folder as a GGUF file",
    "gguf to-hf": "a GGUF file as a Hugging Face folder",
    "gguf quantize": "round a model to fewer bits",
    "gguf imatrix": "find out which columns of a model's weights matter, from a text",
}

PRINT_NOTHING = (["serve"],)  # commands that leave standard output alone: it may be closed


class Command(Protocol):
    """What the file of a command offers."""

    def parser(self) -> Parser:
        """The command's arguments and help."""

    def run(self, args: object) -> int | None:
        """Do it; the exit code, or None for 0."""


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    if argv is not None:
        return finished(argv)
    try:
        try:
            watch_interrupts()
            code = finished(sys.argv[1:])
        except KeyboardInterrupt:
            code = 130
        except OSError:
            if not interrupt.is_ending():
                raise
            code = 130  # nobody reads any more: the terminal has gone
        code = interrupt.exit_code(code)
        leave_quietly(code)
    except KeyboardInterrupt:
        code = interrupt.exit_code(130)
        leave_quietly(code)
    return code


def watch_interrupts() -> None:
    """Remember Ctrl-C: an import that it cuts short may fail with another error, which is none to tell of. A request to
    end is heard likewise."""

    def note(number: int, frame: FrameType | None) -> None:
        _interrupted.append(True)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell wants it ignored
        # Registered first, so called last: what the interpreter still tidies up is not cut short.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGINT, note)
    interrupt.watch_ends()
    interrupt.raise_what_is_lost()


def leave_quietly(code: int) -> None:
    """All is done: from here on, Ctrl-C ends the program with its own exit code, and without a word."""
    if interrupt.is_ending():
        for number in interrupt.endings():
            signal.signal(number, signal.SIG_IGN)
        flush_or_drop()
    if signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, signal.SIG_DFL, None):
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(code))


def finished(words: list[str]) -> int:
    """Run one command, every failure as one line; returns the exit code."""
    if standard_streams.reopen_closed() and words[:1] not in PRINT_NOTHING:
        return fail(standard_streams.OUTPUT_CLOSED, words)
    try:
        code = dispatch(words)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return leave_closed_pipe()
    except UsageError as error:
        fail(str(error), words)
        return 2
    except SporeError as error:
        return fail_without_memory(words) if is_memory_shortage(error) else fail(str(error), words)
    except MemoryError:
        return fail_without_memory(words)
    except OSError as error:
        if is_memory_shortage(error):
            return fail_without_memory(words)
        if interrupt.is_ending():  # the terminal has gone, and with it whoever reads
            return 130
        if is_full_output(error):
            leave_closed_pipe()
            return fail(f"standard output cannot be written: {error.strerror}; make room, or write elsewhere", words)
        where = f" {error.filename!r:.200}:" if error.filename else ""
        remedy = " (free some, or move the caches and the store: docs/settings.md)" if error.errno == ENOSPC else ""
        return fail(f"{where} {error.strerror or error}{remedy}".strip(), words)
    except SystemExit:
        raise
    except BaseException as error:  # a panic of a library is no Exception
        if _interrupted and isinstance(error, ImportError):  # an import that Ctrl-C cut short
            return 130
        if shortage := thread_shortage(error):
            return fail(str(shortage), words)
        if is_memory_shortage(error):
            return fail_without_memory(words)
        reason = (str(error).splitlines() or [""])[0]
        return fail(f"unexpected {type(error).__name__}: {reason} (--debug shows the traceback)", words)


def dispatch(words: list[str]) -> int:
    """Find the command and run it; wrong usage leaves with SystemExit(2), as argparse does."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal that lacks a character must not end the answer.
            stream.reconfigure(errors="backslashreplace")
    if not words:
        sys.stderr.write(overview(terminal_width(sys.stderr)))
        return 2
    length = 2 if " ".join(words[:2]) in COMMANDS else 1
    name, rest = " ".join(words[:length]), words[length:]
    if name in ("-h", "--help", "help"):
        sys.stdout.write(overview(terminal_width()))
        return 0
    if name in ("-V", "--version"):
        print(f"spore {__version__}")
        return 0
    if name not in COMMANDS:
        sys.stderr.write(f"spore: no command {name!r}: there are {', '.join(COMMANDS)} (see 'spore --help')\n")
        return 2
    command = load(name)
    name_warnings()
    try:
        return command.run(command.parser().parse_args(rest)) or 0
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 0


def name_warnings() -> None:
    """What the layers below log, which is warnings, says whom it comes from, as failures do."""
    import logging

    if logging.lastResort is not None:
        logging.lastResort.setFormatter(logging.Formatter("spore: %(message)s"))


def load(name: str) -> Command:
    """The module of a command."""
    return cast(Command, import_module(f"sporelm.cli.{name.replace(' ', '_').replace('-', '_')}"))


def overview(width: int | None = None) -> str:
    """What `spore --help` prints, laid out for a terminal of `width` columns; None for a page."""
    lines = ["usage: spore COMMAND ...", "", "Runs language models on whatever hardware is there.", "", "commands:"]
    # `spore gguf` lists its tools itself: they would be half of this page.
    for name, summary in COMMANDS.items():
        if not name.startswith("gguf "):
            lines += labelled(f"  {name}", summary, 14, width)
    lines += ["", "options:", "  -h, --help  show this text and exit", "  --version   show the version and exit"]
    lines += ["", "'spore COMMAND --help' says more about each.", "", "example:", "  spore chat"]
    return "\n".join(line for each in lines for line in fold(each, width)) + "\n"


def fail(message: str, words: list[str]) -> int:
    """Print the reason as one line that cannot steer a terminal, with the traceback before it if --debug was given."""
    if "--debug" in words:
        import traceback

        traceback.print_exc()
    from sporelm.cli.plain_text import plain

    sys.stderr.write(f"spore: {plain(' '.join(message.split()))}\n")
    return 1


def fail_without_memory(words: list[str]) -> int:
    """Report a shortage of memory. Silence stderr afterwards: while the interpreter frees objects it would print an
    error for each one that needs memory for that."""
    code = fail(out_of_memory(), words)
    if address_space_limit() is not None:
        with suppress(OSError, ValueError):
            sys.stderr.flush()
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    return code


def flush_or_drop() -> None:
    """Print what is left, or nothing where the terminal has gone: the interpreter would complain at its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def leave_closed_pipe() -> int:
    """The reader of our output has gone, which is its right: leave without a word."""
    # The interpreter flushes stdout once more at exit; it must not find the closed pipe (or the full disk) again.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    return 0
