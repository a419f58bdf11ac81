"""Models for the tests of this folder: opened back-ends, and tiny models on disk and loaded."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from safetensors.numpy import save_file

from available import BACKENDS, open_available
from sporelm.checkpoints import open_model
from sporelm.checkpoints.loader import load_parameters
from sporelm.models import build
from sporelm.ops.canonical_pages import KV_TYPES
from stepping import Stepper
from tiny_models import Tiny


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark two of three tests on torch `all`: together they take minutes, and most repeat its products."""
    here = Path(__file__).parent
    for item in items:
        case = getattr(item, "callspec", None)
        if (
            case
            and case.params.get("backend") == "torch"
            and here in item.path.parents
            and crc32(item.name.encode()) % 3
        ):
            item.add_marker(pytest.mark.all)


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Each back-end that runs here."""
    backend = open_available(request.param)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def cpu() -> Iterator[Any]:
    """The CPU, with one thread."""
    backend = open_available("cpu", threads=1)
    yield backend
    backend.close()


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Tiny], Path]:
    """Writes a tiny model as a Hugging Face folder, once, and gives its path."""
    written: dict[str, Path] = {}

    def write(tiny: Tiny) -> Path:
        if tiny.name not in written:
            folder = tmp_path_factory.mktemp(tiny.name)
            (folder / "config.json").write_text(json.dumps(tiny.config))
            save_file(tiny.weights(), folder / "model.safetensors", metadata={"format": "pt"})
            written[tiny.name] = folder
        return written[tiny.name]

    return write


def stepper(
    path: Path, backend: Any, *, context: int, eager: bool, sequences: int = 1, kv: str = "f32", **options: Any
) -> Stepper:
    """A model on disk, loaded and ready to run; `options` go to load_parameters."""
    source = open_model(path)
    model = build(source.config)
    weights = load_parameters(source, model.params(), backend, **options)
    source.close()
    return Stepper(model, weights, backend, context=context, sequences=sequences, eager=eager, kv=KV_TYPES[kv])


@pytest.fixture(scope="session")
def load() -> Callable[..., Stepper]:
    """`stepper`, as a fixture."""
    return stepper
