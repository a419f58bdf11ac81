"""Errors of the layers below, as a terminal shows them."""

from pathlib import Path

import pytest

from sporelm import LLM
from sporelm.cli.main import main
from sporelm.cli.terminal_text import format_error
from sporelm.errors import RequestError


def test_an_error_is_one_safe_line_with_flags() -> None:
    error = RequestError("the option max_context is\n9: lower it, or the option kv\x1b[2J")
    assert format_error(error) == "--max-context is 9: lower it, or --kv\\x1b[2J"


def test_a_command_names_flags_and_python_names_arguments(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--device", "npu", "--backend", "cpu"]
    assert main(["run", str(story), "-p", "Hi", *words]) == 1
    has = "the one that has this device (torch, cuda, opencl)"
    remedy = f"no such device (got 'npu'; allowed 'cpu'). Set {{}} to {has}, or to auto."
    assert capsys.readouterr().err == "spore: back-end 'cpu': " + remedy.format("--backend") + "\n"
    with pytest.raises(RequestError, match="the option max_context is 0: it must be at least 1"):
        LLM(story, max_context=0)
