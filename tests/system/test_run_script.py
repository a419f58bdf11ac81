"""`./run`, as far as it goes without installing anything."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="no bash")


def shell(script: Path, *words: str, cwd: Path, path: str | None = None) -> subprocess.CompletedProcess[str]:
    variables = os.environ | ({"PATH": path} if path else {})
    command = [str(BASH), str(script), *words]
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=60, check=False)


def test_help_from_any_folder(root: Path, tmp_path: Path) -> None:
    done = shell(root / "run", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("chat", "test", "lint", "bench"):
        assert f"./run {name}" in done.stdout


def test_without_a_python_it_says_which_is_needed(root: Path, tmp_path: Path) -> None:
    """On a machine with an old Python only, and a launcher that has nothing behind it."""
    copy, tools = tmp_path / "project", tmp_path / "tools"
    copy.mkdir()
    tools.mkdir()
    shutil.copy(root / "run", copy / "run")
    for name in ("python3.13", "python3", "python"):
        (tools / name).write_text(f"#!{BASH}\nexit 1\n")
        (tools / name).chmod(0o755)
    for name in ("dirname", "sed", "cat", "cksum", "rm"):
        (tools / name).symlink_to(str(shutil.which(name)))
    done = shell(copy / "run", "chat", cwd=tmp_path, path=str(tools))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("run: Python 3.11 or newer is needed")
    assert not (copy / ".venv").exists()


@pytest.mark.parametrize("script", ["run", ".ci/run", "bench/peer.sh"])
def test_scripts_are_executable_and_parse(root: Path, script: str) -> None:
    assert os.access(root / script, os.X_OK)
    done = subprocess.run(
        [str(BASH), "-n", str(root / script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "words",
    [
        *([], ["--only", "avx2"], ["d", "--only"], ["d", "--only", "sse"], ["d", "e"], ["d", "--mtmd", "e"]),
        *(["d", "--f16-cache"], ["d", "--source", "s"], ["d", "--only", "ik", "--mtmd", "--source", "s"]),
    ],
    ids=str,
)
def test_peer_script_wants_a_folder(root: Path, tmp_path: Path, words: list[str]) -> None:
    done = shell(root / "bench" / "peer.sh", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: bench/peer.sh DIR [--only avx2] [--mtmd]\n")
    assert not list(tmp_path.iterdir())


def test_peer_script_wants_the_source_of_ik_llama_cpp(root: Path, tmp_path: Path) -> None:
    done = shell(root / "bench" / "peer.sh", "d", "--only", "ik", "--source", ".", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("peer.sh: --source '.' does not hold the source of ik_llama.cpp: give a folder")
    assert not list(tmp_path.iterdir())
