"""The public interface: names, errors, options, and cheap imports."""

import subprocess
import sys

import pytest

import sporelm
from architecture.sources import PACKAGE, ROOT, relative, sources
from sporelm import errors
from sporelm.cli import main

PUBLIC = [
    *("AsyncLLM", "Completion", "Conversation", "Grammar", "ImageTextEncoder", "LLM", "LoraAdapter", "Piece"),
    *("SamplingParams", "SporeError", "__version__", "pipeline"),
]

ENGINE = {
    "--backend",
    "--device",
    "--dtype",
    "--strict",
    "--threads",
    "--eager",
    "--batch-invariant",
    "--device-memory",
    "--experts-on",
    "--max-context",
    "--kv",
    "--kv-memory",
    "--speculate",
    "--draft-model",
    *{"--tp", "--pp", "--ep", "--tp-shares", "--pp-layers", "--micro-batches", "--rank-executor"},
    *{"--remote-ranks", "--rank-listen", "--rank-token-file", "--rank-tls-cert", "--rank-tls-key", "--rank-devices"},
}
UNGUESSED = ENGINE - {"--speculate", "--draft-model"}
SAMPLING = {
    *{"-n", "--max-tokens", "--temp", "--top-k", "--top-p", "--min-p", "--repetition-penalty"},
    *{"--seed", "--stop", "--ignore-eos", "--roll", "--typical-p", "--xtc-probability", "--xtc-threshold"},
    *{"--presence-penalty", "--frequency-penalty", "--dry-multiplier", "--dry-base", "--dry-allowed-length"},
    *{"--dry-range", "--dry-breaker", "--mirostat", "--mirostat-tau", "--mirostat-eta", "--min-tokens"},
    *{"--logit-bias", "--stop-token-id", "--json-schema", "--regex", "--lark", "--gbnf", "--choice"},
}
ANSWERS = {"--num-answers", "--best-of", "--logprobs"}
EVERY = {"--debug", "-h", "--help"}
WATCHING = {"--trace", "--record"}
WRITING = {"-o", "--output", "--force", "--dry-run", "--json"}

# A new option must edit this list, which a reviewer sees.
OPTIONS = {
    "run": {"--lora", "-p", "--prompt", "-f", "--file", "--json", "--chat-template", "--mmproj", "--image"}
    | SAMPLING
    | ANSWERS
    | ENGINE
    | WATCHING
    | EVERY,
    "chat": {"--lora", "--system", "--session-dir", "--url", "--api-key", "--chat-template", "--mmproj", "--image"}
    | SAMPLING
    | ENGINE
    | WATCHING
    | EVERY,
    "serve": {
        *{"--model", "--config", "--host", "--port", "--session-dir", "--log", "--api-key", "--api-keys-file"},
        *{"--cors-origin", "--allowed-host", "--tls-cert", "--tls-key", "--max-waiting", "--max-prompts"},
        *{"--max-body", "--max-connections", "--request-seconds", "--shutdown-seconds", "--idle-seconds"},
        *{"--render-seconds", "--grammar-seconds", "--max-image-body", "--allow-image-host", "--mmproj"},
        *{"--model-memory", "--max-sessions", "--max-batch", "--any-model-name", "--chat-template", "--lora"},
    }
    | ENGINE
    | EVERY,
    "worker": {
        *{"--join", "--token-file", "--rank-tls-ca", "--allow-public-address", "--wait-seconds"},
        *{"--threads", "--backend", "--device"},
    }
    | EVERY,
    "replay": {"--lora", "--backend", "--device", "--dtype", "--strict", "--threads", "--eager", "--json"} | EVERY,
    "bench": {
        *{"--lora", "-p", "-n", "-b", "-d", "--whole", "--repeat", "--peer", "--save", "--plot"},
        *{"--json", "--md", "--csv", "--mmproj"},
    }
    | ENGINE
    | WATCHING
    | EVERY,
    "bench serve": {
        *{"--url", "--model", "--api-key", "--endpoint", "-c", "--rate", "--requests", "--warmup", "--repeat", "-p"},
        *{"-n", "--shared-prefix", "--temp", "--seed", "--timeout", "--save", "--plot", "--json", "--md", "--csv"},
    }
    | EVERY,
    "bench tune": {"--target", "--format", "--quick", "--backend", "--device", "--json"} | EVERY,
    "eval": {"--lora", "--json", "--max-tokens"} | UNGUESSED | EVERY,
    "embed": {"-f", "--file", "--pooling", "--prompt-name", "--truncate", "--no-normalize", "--json"}
    | {"--image", "--mmproj"}
    | UNGUESSED
    | EVERY,
    "rerank": {"-f", "--file", "--top-n", "--no-normalize", "--json"} | UNGUESSED | EVERY,
    "tokenize": {"--json"} | EVERY,
    "pull": {"--revision"} | EVERY,
    "list": {"--json"} | EVERY,
    "rm": {"-y", "--yes"} | EVERY,
    "info": {
        "--context",
        "--batch",
        "--device-memory",
        "--experts-on",
        "--kv",
        "--backend",
        "--device",
        "--dtype",
        "--threads",
        "--no-speed",
        "--mmproj",
        "--image-size",
        "--tp",
        "--pp",
        "--ep",
        "--tp-shares",
        "--pp-layers",
        "--json",
    }
    | EVERY,
    "doctor": {"--json", "--conformance", "--all", "--backend", "--device", "--dtype", "--models", "--report"} | EVERY,
    "gguf": EVERY,
    "gguf show": {
        *{"-m", "--filter-meta", "-t", "--filter-tensor", "-n", "--array-detail", "--full", "--meta", "--no-meta"},
        *{"--tensors", "--no-tensors", "--json", "--color"},
    }
    | EVERY,
    "gguf show-data": {
        *{"--rows", "--cols", "--head", "--bins", "--log", "--values", "--no-values", "--stats", "--no-stats"},
        *{"--json", "--color"},
    }
    | EVERY,
    "gguf verify": {"--values", "--no-values", "--hashes", "--check", "--strict", "--json", "--color"} | EVERY,
    "gguf diff": {
        *{"-m", "--filter-meta", "-t", "--filter-tensor", "--distance", "--meta", "--no-meta", "--tensors"},
        *{"--no-tensors", "--data", "--no-data", "--json", "--color"},
    }
    | EVERY,
    "gguf split": {"--max-tensors", "--max-size", "--no-tensor-first-split", "--no-data"} | WRITING | EVERY,
    "gguf merge": {"--no-data"} | WRITING | EVERY,
    "gguf set-meta": {"--file", "--metadata", "--delete", "--in-place", "--no-data"} | WRITING | EVERY,
    "gguf convert": {"-x", "--steps", "--no-data"} | WRITING | EVERY,
    "gguf from-hf": {
        *{"--type", "--pre", "--vocab-only", "--threads", "--no-data", "--mmproj"},
        *{"--split-max-tensors", "--split-max-size", "--no-tensor-first-split"},
    }
    | WRITING
    | EVERY,
    "gguf to-hf": {"--dtype", "--shard-size", "--vocab-only", "--threads", "--mmproj"} | WRITING | EVERY,
    "gguf quantize": {
        *{"-t", "--type", "--imatrix", "--tensor", "--output-type", "--embedding-type", "--pure", "--keep-split"},
        *{"--allow-requantize", "--threads", "--no-data"},
    }
    | WRITING
    | EVERY,
    "gguf imatrix": {
        *{"-o", "--output", "--merge", "--chunks", "--context", "--process-output", "--resume", "--format"},
        *{"--backend", "--device", "--dtype", "--strict", "--threads", "--force", "--json"},
    }
    | EVERY,
}

# Python modules that exist on POSIX systems only.
POSIX_ONLY = ["fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"]
HEAVY = ["numpy", "llguidance", "llvmlite", "tokenizers", "jinja2", "rich", "prompt_toolkit", "torch"]
HEAVY += ["starlette", "uvicorn", "msgspec", "prometheus_client"]


def python(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, timeout=120, check=False)


def test_public_names() -> None:
    assert sorted(sporelm.__all__) == sorted(PUBLIC)


def test_public_names_resolve() -> None:
    assert not [name for name in PUBLIC if getattr(sporelm, name) is None]


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        sporelm.no_such_name  # noqa: B018


def test_version_is_that_of_the_project() -> None:
    assert f'version = "{sporelm.__version__}"' in (ROOT / "pyproject.toml").read_text()


def test_errors_are_one_tree() -> None:
    found = [item for item in vars(errors).values() if isinstance(item, type)]
    for error in found:
        assert issubclass(error, errors.SporeError), f"{error.__name__} is not a SporeError"
        assert error.__name__ in (errors.__doc__ or ""), (
            f"{error.__name__} is missing in the tree at the top of errors.py"
        )


@pytest.mark.parametrize("name", main.COMMANDS)
def test_options_are_frozen(name: str) -> None:
    parser = main.load_command(name).make_parser()
    assert {option for action in parser._actions for option in action.option_strings} == OPTIONS[name]


@pytest.mark.parametrize("name", main.COMMANDS)
def test_help_shows_an_example(name: str) -> None:
    assert f"spore {name}" in main.load_command(name).make_parser().format_help().partition("example")[2]


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["run", "--help"],
        ["serve", "--help"],
        ["bench", "tune", "--help"],
        ["gguf", "--help"],
        ["gguf", "show", "--help"],
    ],
    ids=" ".join,
)
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    call = f"code = main({words}); print(code, *sys.modules, file=sys.stderr)"
    done = python(f"import sys; from sporelm.cli.main import main; {call}")
    code_word, *modules = done.stderr.split()
    assert code_word == "0"
    assert not [name for name in modules if name.split(".")[0] in HEAVY]


def test_libraries_import_without_llvmlite() -> None:
    code = (
        "import sys; sys.modules['llvmlite'] = None\n"
        "import sporelm.tensor, sporelm.quant, sporelm.checkpoints, sporelm.text, sporelm.files.gguf"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_default_path_imports_without_posix() -> None:
    code = (
        f"import sys\nfor name in {POSIX_ONLY}: sys.modules[name] = None\n"
        "import sporelm\nfor name in sporelm.__all__: getattr(sporelm, name)\n"
        "from sporelm.cli import main\nfor name in main.COMMANDS: main.load_command(name).make_parser()\n"
        "import sporelm.cli.chat_sessions, sporelm.files.store, sporelm.backends.cpu, sporelm.backends.reference"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_only_settings_reads_the_environment() -> None:
    wrong = [
        f"{relative(each.path)}:{line}"
        for each in sources(PACKAGE)
        for line in each.environment_lines
        if each.path.name != "settings.py"
    ]
    assert not wrong, f"use sporelm.settings: {wrong}"


def test_every_command_has_a_file() -> None:
    for name in main.COMMANDS:
        assert callable(main.load_command(name).run)
