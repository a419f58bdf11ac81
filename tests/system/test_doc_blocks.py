"""Every code block of the documentation runs as it stands, in a folder with the models that it names.

Python blocks of a page run one after the other, in one process. Commands run against tiny models; commands that need a
network, a peer or minutes are parsed, by the command line's own parsers or the script's help.
"""

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import pytest

from documentation import PAGES, ROOT, blocks, shell_lines, write_files
from sporelm.cli.main import COMMANDS, load_command
from system.processes import SECONDS, command, environment

Place = tuple[Path, Mapping[str, str]]
BLOCKS = list(blocks())
PYTHON = {
    page.name: [block for block in BLOCKS if (block.page, block.language) == (page.name, "python")] for page in PAGES
}
COMMAND_WORDS = ("spore ", "./run ", "python ", ".venv/bin/python ", "bench/", "curl ", "echo ")
COMMAND_WORDS += ("PYTHONPATH=", "SPORE_")
SHELL = [
    pytest.param(line, id=f"{block.page}:{number}")
    for block in BLOCKS
    if block.language == "" and block.page != "commands.md"
    for number, line in shell_lines(block)
    if line.startswith(COMMAND_WORDS)
]
# Only parsed: what fetches, what lies on another host, what needs a peer's tools, what takes minutes.
PARSED = re.compile(
    r"hf:owner|https://host|--peer|synthetic:|bench tune|mydevice|spore rm|spore bench serve|--remote-ranks"
    r"|spore worker"
)
RUNNER = """
import json, sys
for page, line, code in json.load(sys.stdin):
    exec(compile("\\n" * (line - 1) + code, page, "exec"), globals())
"""


@pytest.fixture(scope="module")
def workplace(story: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("documentation")
    return folder, write_files(folder, story)


@pytest.fixture(scope="module")
def address(workplace: Place) -> Iterator[str]:
    """The address of a server with a chat model, which answers for any name and has two adapters, and a reranker."""
    folder, variables = workplace
    models = ("--model", "smollm2=model.gguf", "--model", "bge-reranker-v2-m3=reranker.gguf", "--any-model-name")
    adapters = ("--lora", "sql=sql-adapter", "--lora", "tone=tone.gguf@0.5")
    with serving(command("serve", *models, *adapters, "--port", 0), folder, variables) as url:
        yield url


@contextmanager
def serving(words: list[str], folder: Path, variables: Mapping[str, str]) -> Iterator[str]:
    """Start `spore serve`, wait until it says where, and end it; it must end with 0 and without a traceback."""
    process = subprocess.Popen(words, cwd=folder, env=environment(**variables), stderr=subprocess.PIPE, text=True)
    watchdog = Timer(SECONDS, process.kill)
    watchdog.start()
    with process:
        try:
            assert process.stderr is not None
            said = []
            for line in process.stderr:
                said.append(line)
                if found := re.search(r"serving .*?(https?://[^\s/,]+)", line):
                    watchdog.cancel()  # it bounds the start; the tests that share the server may take longer
                    yield found[1]
                    break
            else:
                pytest.fail("".join(said))
            process.send_signal(signal.SIGTERM if sys.platform != "win32" else signal.SIGINT)
            rest = process.stderr.read()
            assert process.wait(SECONDS) in (0, 130, 143), rest
            assert "Traceback" not in rest
        finally:
            watchdog.cancel()
            process.kill()


def test_every_block_is_of_a_kind_that_is_tested() -> None:
    kinds = {block.language for block in BLOCKS}
    assert kinds <= {"", "python", "toml", "ini", "dockerfile"}
    texts = {str(block) for block in BLOCKS if block.language == "" and block.page != "commands.md"}
    commands = {str(block) for block in BLOCKS for _, line in shell_lines(block) if line.startswith(COMMAND_WORDS)}
    assert {name.partition(":")[0] for name in texts - commands} <= {"architecture.md", "web-chat.md"}  # no commands


@pytest.mark.parametrize("page", [page for page in PYTHON if PYTHON[page]])
def test_python_blocks_run(page: str, workplace: Place, address: str, request: pytest.FixtureRequest) -> None:
    if page == "adding-a-model.md":
        pytest.skip("tests/models/test_adding_a_model.py builds that example and compares its logits")
    if page == "adaptors.md":
        pytest.importorskip("transformers", minversion="5", reason="transformers 5 is not installed")
    if page == "new-device.md":
        pytest.skip("tests/system/test_new_device.py builds that package and runs its report")
    folder, variables = workplace
    if page == "tools.md":  # its assertion on a call needs a model that has learnt to call
        smollm2 = request.getfixturevalue("smollm2")
        variables = {**variables, "SPORE_MODEL_STORE": str(smollm2.parents[1])}
    given = [(block.page, block.line, block.text.replace("http://127.0.0.1:8000", address)) for block in PYTHON[page]]
    ran = subprocess.run(
        [sys.executable, "-c", RUNNER], input=json.dumps(given), cwd=folder, env=environment(**variables),
        capture_output=True, encoding="utf-8", timeout=SECONDS, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr, ran.stderr


@pytest.mark.parametrize("line", SHELL)
def test_commands_run(line: str, workplace: Place, request: pytest.FixtureRequest) -> None:
    """As a shell would: variables before the command, a pipe into it."""
    folder, variables = workplace
    if not line.startswith(("spore ", "echo ", "curl ")) or PARSED.search(line):
        check_words(shlex.split(line))
        return
    if "127.0.0.1:80" in line:
        line = re.sub(r"http://127\.0\.0\.1:80\d\d", request.getfixturevalue("address"), line)
    before, _, after = line.rpartition(" | ")
    words = shlex.split(after)
    if words[0] == "curl":
        run_curl(words, folder)
        return
    words = command(*(str(folder / "model.gguf") if word == "MODEL" else word for word in words[1:]))
    if line.startswith("spore serve"):
        check_serve(words, folder, variables)
        return
    text = shlex.split(before)[1] if before else "/exit\n"
    ran = subprocess.run(
        words, input=text, cwd=folder, env=environment(**variables), capture_output=True, encoding="utf-8",
        timeout=SECONDS, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr


def check_serve(words: list[str], folder: Path, variables: Mapping[str, str]) -> None:
    if "cert.pem" in words and not make_certificate(folder):
        pytest.skip("no openssl to make a certificate with")
    with serving([*words, "--port", "0"], folder, variables):
        pass


def make_certificate(folder: Path) -> bool:
    """Write cert.pem and key.pem; whether openssl is there to do it."""
    openssl = shutil.which("openssl")
    if openssl:
        made = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem")
        words = [openssl, *made, "-days", "2", "-subj", "/CN=localhost"]
        subprocess.run(words, cwd=folder, check=True, capture_output=True)
    return openssl is not None


def run_curl(words: list[str], folder: Path) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    ran = subprocess.run(
        [curl, "--silent", "--fail-with-body", *words[1:]], cwd=folder, capture_output=True, text=True,
        timeout=SECONDS, check=False, env={**os.environ, "no_proxy": "127.0.0.1"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout
    json.loads(ran.stdout)


def check_words(words: list[str]) -> None:
    """A command that is not run here: its program exists, and takes these options."""
    while re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    program, rest = words[0], words[1:]
    if program in ("python", ".venv/bin/python"):
        check_script(rest)
    elif program == "bench/peer.sh":
        script = (ROOT / program).read_text(encoding="utf-8")
        assert all(word in script for word in rest if word.startswith("--"))
    elif program == "./run" and rest[0] not in COMMANDS:
        assert re.search(rf"^{rest[0]}\)", (ROOT / "run").read_text(encoding="utf-8"), re.MULTILINE), rest[0]
    else:
        assert program in ("spore", "./run"), program
        length = 2 if " ".join(rest[:2]) in COMMANDS else 1
        load_command(" ".join(rest[:length])).make_parser().parse_args(rest[length:])


def check_script(rest: list[str]) -> None:
    """A script, or a module below tests/ as `-m NAME`, exists and takes these options."""
    if rest[0] == "-m":
        module = ROOT.joinpath("tests", *rest[1].split("."))
        assert (module / "__main__.py").is_file() or module.with_suffix(".py").is_file()
        program, rest = rest[:2], rest[2:]
    else:
        assert (ROOT / rest[0]).is_file()
        program, rest = [str(ROOT / rest[0])], rest[1:]
    wanted = [word for word in rest if word.startswith("--")]
    if wanted:
        variables = environment(PYTHONPATH=f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}")
        ran = subprocess.run(
            [sys.executable, *program, "--help"], env=variables, capture_output=True, text=True, timeout=SECONDS,
            check=True,
        )  # fmt: skip
        assert [word for word in wanted if word not in ran.stdout] == []


def test_examples_of_the_help_are_taken() -> None:
    """The last lines of each command's help, which docs/commands.md shows."""
    found = 0
    for block in BLOCKS:
        if block.page == "commands.md":
            _, _, examples = block.text.partition("\nexample")
            for line in examples.splitlines()[1:]:
                words = shlex.split(line.partition("| ")[2] or re.split(r" [<>] ", line)[0])
                check_words(words)
                found += 1
    assert found > 40


def test_configurations_are_read(tmp_path: Path) -> None:
    """The server's TOML by its own reader; others, and systemd's and Docker's files, by form and commands."""
    from sporelm.serve.serve_config import values_from_file

    for block in BLOCKS:
        if block.language == "toml" and block.page == "server.md":
            (tmp_path / "serve.toml").write_text(block.text, encoding="utf-8")
            assert values_from_file(tmp_path / "serve.toml")
        elif block.language == "toml":
            assert "sporelm.backends" in tomllib.loads(block.text)["project"]["entry-points"]
        elif block.language == "ini":
            unit = configparser.ConfigParser(strict=False)
            unit.read_string(block.text)
            check_words(["spore", *shlex.split(unit["Service"]["ExecStart"])[1:]])
        elif block.language == "dockerfile":
            entry = re.search(r"^ENTRYPOINT (.*)$", block.text, re.MULTILINE)
            assert entry is not None
            check_words(json.loads(entry[1]))
