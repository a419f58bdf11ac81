"""Files without tensor data: the header of the whole file, which `show` and `diff --no-data` read."""

import os
import shutil
from pathlib import Path

import gguf
import pytest

from gguf_models import write_model
from sporelm.errors import ModelFileError, RequestError
from sporelm.files.gguf import open_gguf
from sporelm.quant import Q8_0
from sporelm.tools.diff import compare_models
from sporelm.tools.lazy_model import open_lazy_model
from sporelm.tools.model_files import open_model_files
from sporelm.tools.output_file import OutputFile, save_models
from sporelm.tools.show import describe_files
from sporelm.tools.verify import verify_model


@pytest.fixture(params=["little", "big"])
def model(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return write_model(tmp_path / "m.gguf", matrices=Q8_0, byte_order=request.param)


@pytest.fixture
def header(model: Path) -> Path:
    path = model.with_name("header.gguf")
    (written,) = save_models([OutputFile(path, open_lazy_model(model))], has_data=False)
    assert written.nbytes == path.stat().st_size
    return path


def test_it_is_the_header_of_the_whole_file(model: Path, header: Path) -> None:
    size = header.stat().st_size
    assert size % 32 == 0
    assert header.read_bytes() == model.read_bytes()[:size]
    assert size == gguf.GGUFReader(model).data_offset


def test_the_gguf_package_reads_the_same_names_types_and_places(model: Path, header: Path, tmp_path: Path) -> None:
    """It reads tensors at once, so that a copy of the header gets the length of the whole file."""
    copy = Path(shutil.copy(header, tmp_path / "long.gguf"))
    os.truncate(copy, model.stat().st_size)
    found, wanted = gguf.GGUFReader(copy), gguf.GGUFReader(model)
    assert {key: field.contents() for key, field in found.fields.items()} == {
        key: field.contents() for key, field in wanted.fields.items()
    }
    assert [(it.name, it.tensor_type, it.shape.tolist(), it.data_offset) for it in found.tensors] == [
        (it.name, it.tensor_type, it.shape.tolist(), it.data_offset) for it in wanted.tensors
    ]


def test_it_is_shown_and_compared(model: Path, header: Path) -> None:
    with open_model_files(model) as whole, open_model_files(header, needs_data=False) as found:
        assert compare_models(whole, found, data=False).same
        shown, wanted = describe_files(found), describe_files(whole)
    assert (shown.has_data, wanted.has_data) == (False, True)
    assert (shown.metadata, shown.tensors, shown.types) == (wanted.metadata, wanted.tensors, wanted.types)


def test_readers_of_data_refuse_it(header: Path) -> None:
    for opening in (open_gguf, open_model_files, open_lazy_model):
        with pytest.raises(ModelFileError, match=r"truncated or damaged, or was written with --no-data"):
            opening(header)
    (finding,) = [each for each in verify_model(header).findings if each.level == "error"]
    assert "has no tensor data" in finding.message


def test_a_file_with_a_part_of_its_data_is_damaged_all_the_same(model: Path, header: Path) -> None:
    os.truncate(model, header.stat().st_size + 1)
    with pytest.raises(ModelFileError, match="truncated or damaged"):
        open_gguf(model, needs_data=False)


def test_no_model_loses_its_data(model: Path) -> None:
    before = model.read_bytes()
    with pytest.raises(RequestError, match="--no-data would delete the tensor data"):
        save_models([OutputFile(model, open_lazy_model(model))], force=True, has_data=False)
    assert model.read_bytes() == before
