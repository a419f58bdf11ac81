"""The entry point of `spore`: finds the command's module, runs it, and turns errors into one line and an exit code.

Exit codes: 0 success, 1 failure with a one-line reason (`--debug` for the traceback), 2 invalid usage, 130 stopped by
Ctrl-C, 143 and 129 by SIGTERM and SIGHUP.
Nothing heavy is imported here, so that `spore --help` is fast.
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
    from sporelm.cli.memory_errors import address_space_limit, is_memory_shortage, out_of_memory
    from sporelm.cli.output_errors import is_output_full
    from sporelm.cli.parser import Parser
    from sporelm.cli.terminal_layout import fold, label_text, terminal_width
    from sporelm.errors import SporeError, UsageError, thread_shortage
except KeyboardInterrupt:  # nothing has started yet
    raise SystemExit(130) from None

_interrupted: list[bool] = []  # filled by Ctrl-C

COMMANDS = {
    "run": "complete a prompt",
    "chat": "chat with a model",
    "serve": "serve models over HTTP, with a web chat",
    "worker": "be one rank of a model that another host runs",
    "bench": "measure the speed, next to the machine's limits and a peer",
    "bench serve": "measure a running server, this one or another",
    "replay": "repeat a recorded run and compare the results",
    "bench tune": "find the fastest settings of the CPU kernels here",
    "eval": "measure the quality: perplexity, divergence from unquantized weights",
    "embed": "compute embeddings of texts",
    "rerank": "sort documents by how well they answer a query",
    "tokenize": "show the tokens of a text",
    "pull": "download a model into the store",
    "list": "list the models in the store",
    "rm": "remove models from the store",
    "info": "show what a model is, the memory it needs, how fast it can be here",
    "doctor": "show hardware, back-ends and what is missing",
    "gguf": "show, check, compare and change model files",
    "gguf show": "show header, metadata and tensors",
    "gguf show-data": "show values, statistics and a histogram of tensors",
    "gguf verify": "check structure, metadata, values and hashes",
    "gguf diff": "show how two models differ",
    "gguf split": "split a model into several files",
    "gguf merge": "merge the files of a split model",
    "gguf set-meta": "change metadata",
    "gguf convert": "transform a model: number formats, order, fused weights, filters",
    "gguf from-hf": "convert a Hugging Face folder to a GGUF file",
    "gguf to-hf": "convert a GGUF file to a Hugging Face folder",
    "gguf quantize": "quantize a model",
    "gguf imatrix": "compute an importance matrix of a model's weights from a text",
}

SILENT_COMMANDS = (["serve"],)  # commands that do not print on standard output, which may be closed


class Command(Protocol):
    """The interface of a command's module."""

    def make_parser(self) -> Parser:
        """Return the parser of the command's arguments, with its help."""

    def run(self, args: object) -> int | None:
        """Run the command and return the exit code; None is 0."""


def main(argv: list[str] | None = None) -> int:
    """Run one command and return the exit code."""
    if argv is not None:
        return run_safely(argv)
    try:
        try:
            install_signal_handlers()
            code = run_safely(sys.argv[1:])
        except KeyboardInterrupt:
            code = 130
        except OSError:
            if not interrupt.is_terminating():
                raise
            code = 130  # the terminal was closed
        code = interrupt.exit_code(code)
        silence_signals(code)
    except KeyboardInterrupt:
        code = interrupt.exit_code(130)
        silence_signals(code)
    return code


def install_signal_handlers() -> None:
    """Record Ctrl-C, because an import that it interrupts may fail with another error. Handle termination signals."""

    def record(number: int, frame: FrameType | None) -> None:
        _interrupted.append(True)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else a shell has it ignored
        # Registered first, so called last: the interpreter's cleanup is not interrupted.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGINT, record)
    interrupt.handle_termination()
    interrupt.reraise_lost_interrupts()


def silence_signals(code: int) -> None:
    """From here on, Ctrl-C ends the program silently with this exit code."""
    if interrupt.is_terminating():
        for number in interrupt.termination_signals():
            signal.signal(number, signal.SIG_IGN)
        flush_output()
    if signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, signal.SIG_DFL, None):
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(code))


def run_safely(words: list[str]) -> int:
    """Run one command, print an error as one line, and return the exit code."""
    if standard_streams.reopen_closed() and words[:1] not in SILENT_COMMANDS:
        return print_error(standard_streams.OUTPUT_CLOSED, words)
    try:
        code = dispatch(words)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return discard_output()
    except UsageError as error:
        print_error(str(error), words)
        return 2
    except SporeError as error:
        return print_out_of_memory(words) if is_memory_shortage(error) else print_error(str(error), words)
    except MemoryError:
        return print_out_of_memory(words)
    except OSError as error:
        if is_memory_shortage(error):
            return print_out_of_memory(words)
        if interrupt.is_terminating():  # the terminal was closed
            return 130
        if is_output_full(error):
            discard_output()
            return print_error(
                f"standard output: cannot be written ({error.strerror}). Free disk space, or write elsewhere.", words
            )
        where = f" {error.filename!r:.200}:" if error.filename else ""
        remedy = " (free space, or move the caches and the store: docs/settings.md)" if error.errno == ENOSPC else ""
        return print_error(f"{where} {error.strerror or error}{remedy}".strip(), words)
    except SystemExit:
        raise
    except BaseException as error:  # a panic of a Rust library is not an Exception
        if _interrupted and isinstance(error, ImportError):  # Ctrl-C interrupted an import
            return 130
        if shortage := thread_shortage(error):
            return print_error(str(shortage), words)
        if is_memory_shortage(error):
            return print_out_of_memory(words)
        reason = (str(error).splitlines() or [""])[0]
        return print_error(f"unexpected {type(error).__name__}: {reason} (--debug shows the traceback)", words)


def dispatch(words: list[str]) -> int:
    """Find the command and run it. Invalid usage raises SystemExit(2), as in argparse."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A character that the terminal lacks must not be an error.
            stream.reconfigure(errors="backslashreplace")
    if not words:
        sys.stderr.write(format_overview(terminal_width(sys.stderr)))
        return 2
    length = 2 if " ".join(words[:2]) in COMMANDS else 1
    name, rest = " ".join(words[:length]), words[length:]
    if name in ("-h", "--help", "help"):
        sys.stdout.write(format_overview(terminal_width()))
        return 0
    if name in ("-V", "--version"):
        print(f"spore {__version__}")
        return 0
    if name not in COMMANDS:
        sys.stderr.write(f"spore: unknown command {name!r}: there are {', '.join(COMMANDS)} (see 'spore --help')\n")
        return 2
    command = load_command(name)
    prefix_warnings()
    try:
        return command.run(command.make_parser().parse_args(rest)) or 0
    except SystemExit as exit:
        return exit.code if isinstance(exit.code, int) else 0


def prefix_warnings() -> None:
    """Prefix the warnings that other layers log with the program's name, like errors."""
    import logging

    if logging.lastResort is not None:
        logging.lastResort.setFormatter(logging.Formatter("spore: %(message)s"))


def load_command(name: str) -> Command:
    """Import the module of a command."""
    return cast(Command, import_module(f"sporelm.cli.{name.replace(' ', '_').replace('-', '_')}"))


def format_overview(width: int | None = None) -> str:
    """Return the help of `spore`, folded to `width` columns; None: not folded."""
    lines = ["usage: spore COMMAND ...", "", "Runs language models on whatever hardware is there.", "", "commands:"]
    # `spore gguf` lists its tools itself, which would fill half of this page.
    for name, summary in COMMANDS.items():
        if not name.startswith("gguf "):
            lines += label_text(f"  {name}", summary, 14, width)
    lines += ["", "options:", "  -h, --help  show this text and exit", "  --version   show the version and exit"]
    lines += ["", "'spore COMMAND --help' says more about each.", "", "example:", "  spore chat"]
    return "\n".join(line for each in lines for line in fold(each, width)) + "\n"


def print_error(message: str, words: list[str]) -> int:
    """Print an error as one line, after its traceback if --debug was given. Returns the exit code."""
    if "--debug" in words:
        import traceback

        traceback.print_exc()
    from sporelm.cli.terminal_text import format_error

    sys.stderr.write(f"spore: {format_error(message)}\n")
    return 1


def print_out_of_memory(words: list[str]) -> int:
    """Print that memory is short, and silence stderr: the interpreter may fail to free objects and print each error."""
    code = print_error(out_of_memory(), words)
    if address_space_limit() is not None:
        with suppress(OSError, ValueError):
            sys.stderr.flush()
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    return code


def flush_output() -> None:
    """Flush both streams, or discard their rest if the terminal was closed, which the interpreter would report."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def discard_output() -> int:
    """Discard the rest of standard output, whose reader has closed the pipe. Returns exit code 0."""
    # The interpreter flushes stdout again at exit, which must not fail.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    return 0
