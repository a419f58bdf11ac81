"""The model that docs/adding-a-model.md adds: its files as they are printed there compute what Qwen3 computes."""

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from available import open_available
from close import assert_close
from families import CASES, write_case
from hf_folders import tokenizer_json, write_tokenizer
from sporelm.checkpoints import schema_registry
from sporelm.models import architecture_registry
from sporelm.tools.hf.from_hf import from_hf
from sporelm.tools.output_file import OutputFile, save_models
from stepping import Stepper

MODULES = ("models.architectures.example", "checkpoints.gguf.example", "checkpoints.hf.example")
REGISTRIES = ("_GGUF", "_HF", "_FIRST_GGUF", "_FIRST_HF")


@pytest.fixture
def modules(root: Path) -> Iterator[list[ModuleType]]:
    """The modules that the page prints, imported. What they registered is removed after the test, and nothing else:
    other modules that were imported meanwhile stay in sys.modules and would not register their schemas again."""
    page = (root / "docs" / "adding-a-model.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == len(MODULES)
    found = []
    for name, block in zip(MODULES, blocks, strict=True):
        module = ModuleType(f"sporelm.{name}")
        sys.modules[module.__name__] = module
        exec(compile(block, "adding-a-model.md", "exec"), module.__dict__)
        found.append(module)
    yield found
    names = {module.__name__ for module in found}
    for name in REGISTRIES:
        registry = getattr(schema_registry, name)
        for key in [key for key, schema in registry.items() if schema.__module__ in names]:
            del registry[key]
    del architecture_registry._REGISTERED["example"]
    for module in found:
        del sys.modules[module.__name__]


def test_the_example_runs(modules: list[ModuleType], tmp_path: Path, load: Callable[..., Stepper]) -> None:
    (qwen3,) = (case for case in CASES if case.name == "qwen3")
    example = replace(qwen3, config=qwen3.config | {"architectures": ["ExampleForCausalLM"], "model_type": "example"})
    backend = open_available("cpu", threads=1)
    folders = [write_case(tmp_path / name, case) for name, case in (("qwen3", qwen3), ("example", example))]
    write_tokenizer(folders[1], tokenizer_json(example.model.config.vocab))
    save_models([OutputFile(tmp_path / "example.gguf", from_hf(folders[1]).model)])
    runners = [load(path, backend, context=128, eager=False) for path in (*folders, tmp_path / "example.gguf")]
    wanted, *found = (runner.step([(0, qwen3.ids())])["logits"] for runner in runners)
    assert all(type(runner.model) is modules[0].Example for runner in runners[1:])
    assert_close(found[0], wanted, "exact")
    assert_close(found[1], wanted, "f32")  # numbers of the metadata are float32
    for runner in runners:
        runner.close()
    backend.close()
