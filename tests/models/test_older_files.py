"""Files of a family that hold its weights in other tensors than our files: the model is the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from available import open_available
from close import assert_close
from families import CASES, write_case
from hf_folders import tokenizer_json, write_tokenizer
from sporelm.files.gguf import GgufWriter
from sporelm.tools.hf.from_hf import from_hf
from sporelm.tools.lazy_model import LazyModel
from sporelm.tools.output_file import OutputFile, save_models
from stepping import Stepper

BY_NAME = {case.name: case for case in CASES}
GATES = "blk.{}.ffn_gate_up_exps.weight"


def written(target: Path, case: Any, model: LazyModel, names: tuple[str, ...]) -> Path:
    """A GGUF file of the model with some of its weights in the tensors that `names` are templates of."""
    arrays = case.stored(case.gguf_schema, *(name.replace("{}", "0") for name in names))
    assert all(name.replace("{}", "0") in arrays for name in names)
    writer = GgufWriter(target)
    for key, entry in model.metadata.items():
        writer.add(key, entry.value, entry.kind)
    for name, values in arrays.items():
        writer.add_tensor(name, values)
    writer.write()
    return target


@pytest.mark.parametrize(("name", "names"), [("qwen3next", ("blk.{}.ssm_in.weight", GATES)), ("qwen35moe", (GATES,))])
def test_other_tensors(name: str, names: tuple[str, ...], load: Callable[..., Stepper], tmp_path: Path) -> None:
    case = BY_NAME[name]
    place = write_case(tmp_path / "folder", case)
    write_tokenizer(place, tokenizer_json(case.model.config.vocab))
    made = from_hf(place).model
    save_models([OutputFile(tmp_path / "usual.gguf", made)])
    other = written(tmp_path / "other.gguf", case, made, names)
    cpu = open_available("cpu", threads=1)
    runners = [load(path, cpu, context=64, eager=True) for path in (tmp_path / "usual.gguf", other)]
    wanted, found = (runner.step([(0, case.ids()[:9])])["logits"] for runner in runners)
    assert_close(found, wanted, "f32")
    for runner in runners:
        runner.close()
    cpu.close()
