"""A shortage of memory is told as such, by whatever error it shows itself."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from gguf_samples import sample
from sporelm.cli import memory_errors
from sporelm.cli.memory_errors import is_memory_shortage, out_of_memory
from sporelm.errors import BackendError, MemoryShortage, ModelFileError
from sporelm.files.memory_map import map_file


def caused(outer: Exception, inner: Exception) -> Exception:
    outer.__cause__ = inner
    return outer


LLVMLITE = OSError("Could not find/load shared object file 'libllvmlite.so'")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        ImportError("libssl.so.3: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
        caused(BackendError("back-end 'cpu' cannot be loaded"), ImportError("x.so: failed to map segment")),
    ],
)
def test_shortages_are_known(error: Exception) -> None:
    assert is_memory_shortage(error)


@pytest.mark.parametrize(
    "error",
    [
        ImportError("no module named x"),
        OSError(errno.ENOENT, "No such file"),
        BackendError("back-end 'cpu' cannot be loaded"),
        caused(MemoryShortage("the model needs 9 GB"), MemoryError()),
    ],
)
def test_other_errors_are_not(error: Exception) -> None:
    assert not is_memory_shortage(error)


@pytest.mark.parametrize("limit", [None, 300_000_000])
def test_llvmlite_lacks_memory_only_under_a_limit(monkeypatch: pytest.MonkeyPatch, limit: int | None) -> None:
    monkeypatch.setattr(memory_errors, "address_space_limit", lambda: limit)
    assert is_memory_shortage(LLVMLITE) == (limit is not None)
    assert ("300 MB (ulimit -v)" in out_of_memory()) == (limit is not None)


def test_a_file_that_cannot_be_mapped_for_want_of_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    path = sample(tmp_path / "model.gguf")
    monkeypatch.setattr("mmap.mmap", refuse)
    with pytest.raises(MemoryShortage, match=r"out of memory for the file \(got .* MB to map\)"):
        map_file(path)
    monkeypatch.undo()
    with pytest.raises(ModelFileError, match="is a folder"):
        map_file(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
@pytest.mark.parametrize("words", [["run", "MODEL", "-p", "x"], ["chat", "MODEL"], ["serve", "MODEL", "--port", "0"],
                                   ["gguf", "show", "MODEL"]], ids=lambda words: words[0])  # fmt: skip
@pytest.mark.parametrize("megabytes", [190, 400])
def test_one_line_under_a_limit(tmp_path: Path, words: list[str], megabytes: int) -> None:
    path = tmp_path / "model.gguf"
    sample(path)
    with path.open("r+b") as file:  # more than the smaller limit leaves
        file.truncate(200_000_000)
    program = (
        f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({megabytes} << 20,) * 2);"
        "from sporelm.cli.main import main; raise SystemExit(main())"
    )
    given = [str(path) if word == "MODEL" else word for word in words]
    done = subprocess.run([sys.executable, "-c", program, *given], capture_output=True, text=True, timeout=60,
                          stdin=subprocess.DEVNULL, check=False)  # fmt: skip
    assert done.returncode in (0, 1)
    assert done.stderr.count("\n") == done.returncode, done.stderr
    assert "Traceback" not in done.stderr
    assert "unexpected" not in done.stderr
