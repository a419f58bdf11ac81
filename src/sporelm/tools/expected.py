"""Whether a model has the tensors of its architecture: all of them, no others, in the right shapes."""

from collections.abc import Iterator, Mapping
from typing import Any

from sporelm.errors import ModelError, UnsupportedModel
from sporelm.tools.findings import ERROR, NOTE, WARNING, Finding
from sporelm.tools.sources import Source
from sporelm.weights.forms import stored_shapes
from sporelm.weights.names import GGUF, HF, Kind, ignorable, listed

MOST_LAYERS = 1 << 16
MOST_FINDINGS = 200  # a wrong number of layers makes every tensor of thousands of them missing


def architecture_findings(source: Source) -> list[Finding]:
    """What is missing, misshapen or too much in an open model.

    Of architectures that are not known here only the numbers of the layers are checked.
    """
    if source.kind == "safetensors" and not source.path.is_dir():
        return [_note("a safetensors file alone does not say of which architecture it is; give the folder")]
    if not source.tensors:
        return [_note("it holds no tensors: a vocabulary alone")]
    if source.kind == "gguf":
        from sporelm.models.registry import known_architectures

        name = source.metadata.get("general.architecture")
        if not isinstance(name, str) or name not in known_architectures():
            message = f"architecture {str(name)[:80]!r} is not known here: whether tensors are missing was not checked"
            return [_note(message), *_layers(source, str(name))]
    try:
        found = list(_against_params(source))
        if len(found) > MOST_FINDINGS:
            more = f"{len(found) - MOST_FINDINGS} more differences from the architecture are left out"
            return [*found[:MOST_FINDINGS], Finding(ERROR, "architecture", "", more)]
        return found
    except UnsupportedModel as reason:
        message = f"which tensors it needs was not checked: {_without_path(source, reason)}"
        if source.path.is_dir():
            return [Finding(WARNING, "architecture", "", f"'spore run' refuses it; {message}")]
        return [_note(message)]
    except ModelError as reason:
        return [Finding(ERROR, "architecture", "", _without_path(source, reason))]


def folder_findings(source: Source) -> list[Finding]:
    """What a folder lacks beside its weights to be run: a tokenizer in one of the forms that are read."""
    from sporelm.text.hf_folder import SENTENCEPIECE_NAMES

    forms = [("tokenizer.json",), ("vocab.json", "merges.txt"), *((name,) for name in SENTENCEPIECE_NAMES)]
    if not source.path.is_dir() or any(all((source.path / name).is_file() for name in form) for form in forms):
        return []
    lacking = "there is no tokenizer.json, vocab.json with merges.txt, or tokenizer.model: 'spore run' refuses it"
    return [Finding(WARNING, "tokenizer", "", lacking)]


def _against_params(source: Source) -> Iterator[Finding]:
    from sporelm.models import build, open_model
    from sporelm.weights.load import adds_nothing, form_of

    model = open_model(source.path)
    try:
        params = build(model.config).params()
        held: Mapping[str, Any] = model.files.tensors  # quantized weights of a folder put together
        stored = {param.name: form_of(model, param.name).name for param in params}
        names = stored_shapes(params, stored, lambda name: form_of(model, name))
        embedding, output = (form_of(model, name).name for name in ("embedding.weight", "output.weight"))
        yield from (_note(note) for note in model.notes)
        surplus = [name for name in held if not adds_nothing(model, name)]
    finally:
        model.close()
    kind: Kind = GGUF if source.kind == "gguf" else HF
    spare = ignorable(held, kind, model.family.ignored)
    if kind == HF and model.config.tie_embeddings:
        # A tied model may store its one matrix under either name, or under both.
        if embedding not in held and output in held:
            names[output] = names.pop(embedding)
        spare = spare | {output}
    yield from _differences(held, names)
    if surplus := sorted(set(surplus) - set(names) - spare):
        what = f"{len(surplus)} tensors that {model.config.architecture} does not have: {listed(surplus)}"
        yield Finding(WARNING, "architecture", "", f"holds {what}")


def _differences(held: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Iterator[Finding]:
    for name, shape in shapes.items():
        entry = held.get(name)
        if entry is None:
            yield Finding(ERROR, "architecture", name, f"is missing; the architecture has it with {list(shape)}")
        elif entry.shape != shape:
            message = f"has shape {list(entry.shape)}, the architecture {list(shape)}"
            yield Finding(ERROR, "architecture", name, message)


def _layers(source: Source, name: str) -> Iterator[Finding]:
    """Layers that have no tensor, and tensors of layers that there are not."""
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
    if count > MOST_LAYERS:
        yield Finding(ERROR, "architecture", f"{name}.block_count", f"is {count}, more than {MOST_LAYERS}")
        return
    if missing := [f"blk.{number}" for number in range(count) if number not in found]:
        yield Finding(ERROR, "architecture", "", f"{len(missing)} of {count} layers have no tensor: {listed(missing)}")
    if surplus := [f"blk.{number}" for number in sorted(found) if number >= count]:
        yield Finding(WARNING, "architecture", "", f"tensors of layers beyond the {count} there are: {listed(surplus)}")


def _note(message: str) -> Finding:
    return Finding(NOTE, "architecture", "", message)


def _without_path(source: Source, reason: ModelError) -> str:
    return str(reason).removeprefix(f"{source.path}: ")
