"""A check that a model has exactly the tensors of its architecture, in the right shapes."""

from collections.abc import Iterator, Mapping, Set
from typing import TYPE_CHECKING, Any

from sporelm.checkpoints.tensor_names import format_names
from sporelm.checkpoints.towers.tower_schema import CLIP
from sporelm.errors import ModelError, UnsupportedModel
from sporelm.tools.diagnostics import ERROR, NOTE, WARNING, Diagnostic
from sporelm.tools.model_files import ModelFiles

if TYPE_CHECKING:
    from sporelm.models.config import ModelConfig

MAX_LAYERS = 1 << 16
MAX_DIAGNOSTICS = 200  # with a wrong number of layers thousands of tensors would be missing


def check_architecture(source: ModelFiles) -> list[Diagnostic]:
    """Return diagnostics for missing, misshapen and surplus tensors of an open model.

    For unknown architectures only the layer numbers are checked.
    """
    if source.kind == "safetensors" and not source.path.is_dir():
        return [_note("a safetensors file alone does not name its architecture; give the folder")]
    if not source.tensors:
        return [_note("it holds no tensors: a vocabulary alone")]
    check = _check_params
    if source.kind == "gguf" and source.metadata.get("general.architecture") == CLIP:
        check = _check_tower
    elif source.kind == "gguf":
        from sporelm.checkpoints.schema_registry import known_names

        name = source.metadata.get("general.architecture")
        if not isinstance(name, str) or name not in known_names():
            message = f"architecture {str(name)[:80]!r} is not known here: whether tensors are missing was not checked"
            return [_note(message), *_check_layer_numbers(source, str(name))]
    try:
        found = list(check(source))
        if len(found) > MAX_DIAGNOSTICS:
            more = f"{len(found) - MAX_DIAGNOSTICS} more differences from the architecture are left out"
            return [*found[:MAX_DIAGNOSTICS], Diagnostic(ERROR, "architecture", "", more)]
        return found
    except UnsupportedModel as reason:
        message = f"which tensors it needs was not checked: {_strip_path(source, reason)}"
        if source.path.is_dir():
            return [Diagnostic(WARNING, "architecture", "", f"'spore run' refuses it; {message}")]
        return [_note(message)]
    except ModelError as reason:
        return [Diagnostic(ERROR, "architecture", "", _strip_path(source, reason))]


def check_folder(source: ModelFiles) -> list[Diagnostic]:
    """Return a diagnostic if a folder has no tokenizer in a supported form."""
    from sporelm.text.tokenizers.hf_folder import SENTENCEPIECE_NAMES

    forms = [("tokenizer.json",), ("vocab.json", "merges.txt"), *((name,) for name in SENTENCEPIECE_NAMES)]
    if not source.path.is_dir() or any(all((source.path / name).is_file() for name in form) for form in forms):
        return []
    lacking = "there is no tokenizer.json, vocab.json with merges.txt, or tokenizer.model: 'spore run' refuses it"
    return [Diagnostic(WARNING, "tokenizer", "", lacking)]


def _check_params(source: ModelFiles) -> Iterator[Diagnostic]:
    from sporelm.checkpoints import open_model
    from sporelm.checkpoints.loader import is_zero_bias
    from sporelm.models import build

    model = open_model(source.path)
    try:
        schema = model.schema
        config = model.config
        held: Mapping[str, Any] = model.files.tensors  # quantized weights of a folder are assembled
        names = schema.resolve(build(config).params(), config, held).source_shapes()
        embedding, output = (schema.stored_name(name, config, held) for name in ("embedding.weight", "output.weight"))
        yield from (_note(note) for note in model.notes)
        surplus = [name for name in held if not is_zero_bias(model, name)]
        spare = schema.find_ignored(held)
    finally:
        model.close()
    if source.kind != "gguf" and config.tie_embeddings:
        # A tied model may store its one matrix under either name, or under both.
        if embedding not in held and output in held:
            names[output] = names.pop(embedding)
        spare = spare | {output}
    yield from _compare_shapes(held, names)
    yield from _list_surplus(set(surplus) - set(names) - spare, config)


def _check_tower(source: ModelFiles) -> Iterator[Diagnostic]:
    """Yield diagnostics for the vision tower of an mmproj file."""
    from sporelm.checkpoints.towers.open_tower import open_tower, tower_gguf_schema
    from sporelm.models.tower_config import TowerConfig
    from sporelm.models.tower_registry import build_tower

    tower = open_tower(source.path)
    try:
        config, held = tower.config, tower.files.tensors
        assert isinstance(config, TowerConfig)
        names = tower.schema.resolve(build_tower(config).params(), config, held).source_shapes()
        spare = tower.schema.find_ignored(held, config) | tower_gguf_schema(config.model).extra_tensors(config).keys()
    finally:
        tower.close()
    yield from _compare_shapes(held, names)
    yield from _list_surplus(set(held) - set(names) - spare, config)


def _list_surplus(surplus: Set[str], config: "ModelConfig") -> Iterator[Diagnostic]:
    """Yield a diagnostic if there are surplus tensors."""
    if surplus:
        what = f"{len(surplus)} tensors that {config.architecture} does not have: {format_names(sorted(surplus))}"
        yield Diagnostic(WARNING, "architecture", "", f"holds {what}")


def _compare_shapes(held: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Iterator[Diagnostic]:
    for name, shape in shapes.items():
        entry = held.get(name)
        if entry is None:
            yield Diagnostic(ERROR, "architecture", name, f"is missing; the architecture has it with {list(shape)}")
        elif entry.shape != shape:
            message = f"has shape {list(entry.shape)}, the architecture {list(shape)}"
            yield Diagnostic(ERROR, "architecture", name, message)


def _check_layer_numbers(source: ModelFiles, name: str) -> Iterator[Diagnostic]:
    """Yield diagnostics for layers without tensors and for tensors beyond the last layer."""
    count = source.metadata.get(f"{name}.block_count")
    if not isinstance(count, int) or isinstance(count, bool):
        return
    found = {
        int(parts[1])
        for parts in (tensor.split(".") for tensor in source.tensors)
        if parts[0] == "blk" and len(parts) > 2 and parts[1].isascii() and parts[1].isdigit() and len(parts[1]) < 10
    }
    if not found:
        return
    if count > MAX_LAYERS:
        yield Diagnostic(ERROR, "architecture", f"{name}.block_count", f"is {count}, more than {MAX_LAYERS}")
        return
    if missing := [f"blk.{number}" for number in range(count) if number not in found]:
        yield Diagnostic(
            ERROR, "architecture", "", f"{len(missing)} of {count} layers have no tensor: {format_names(missing)}"
        )
    if surplus := [f"blk.{number}" for number in sorted(found) if number >= count]:
        yield Diagnostic(
            WARNING, "architecture", "", f"tensors of layers beyond the {count} there are: {format_names(surplus)}"
        )


def _note(message: str) -> Diagnostic:
    return Diagnostic(NOTE, "architecture", "", message)


def _strip_path(source: ModelFiles, reason: ModelError) -> str:
    return str(reason).removeprefix(f"{source.path}: ")
