"""The writing tools on hostile files: random ones are restored, damaged ones end with one line and no file."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gguf_models import DENSE, META, MIXTURE, contents, write_model
from sporelm.errors import SporeError
from sporelm.files.gguf import GgufWriter
from sporelm.quant import Q8_0
from sporelm.quant.ggml_types import GGML_TYPES
from sporelm.tools import split_model
from sporelm.tools.convert import convert_model
from sporelm.tools.lazy_model import open_lazy_model
from sporelm.tools.merge_splits import merge_splits
from sporelm.tools.output_file import save_models
from sporelm.tools.set_meta import parse_assignment, set_meta
from sporelm.tools.steps import parse_steps

QUICK = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
WORDS = [
    "sort", "permute-qk", "permute-qk-rev", "merge-linear", "merge-linear:ffn", "merge-linear:exps", "split-linear",
    "split-linear:attn", "cast:linear:Q8_0", "cast:linear:F16,embd:BF16,norm:F32,else:F16", "cast:else:Q4_K",
    "to-llama", "filter-meta:*head*", "filter-tensor:!blk.0.attn_k*", "filter-tensor:zzz", "filter-meta:!llama.*",
]  # fmt: skip

names = st.sampled_from(
    [*DENSE, *MIXTURE, "blk.0.attn_qkv.weight", "blk.0.ffn_gate_up_exps.weight", "blk.99.", "x", "…"]
)
scalars = st.one_of(
    st.booleans(), st.integers(-(2**31), 2**64 - 1), st.floats(width=32), st.text(max_size=8),
    st.lists(st.integers(0, 9), min_size=1, max_size=4), st.lists(st.text(max_size=4), min_size=1, max_size=4),
)  # fmt: skip
keys = st.sampled_from(
    [*META, "llama.rope.dimension_count", "llama.attention.key_length", "x.y", "minicpm.logit_scale"]
)


@st.composite
def tensor_lists(draw: st.DrawFn) -> list[tuple[str, int, tuple[int, ...]]]:
    found = []
    for name in draw(st.lists(names, unique=True, max_size=7)):
        type_id = draw(st.sampled_from(sorted(GGML_TYPES)))
        axes = draw(st.lists(st.integers(1, 6), max_size=3))
        last = GGML_TYPES[type_id].values * draw(st.integers(1, 3))
        found.append((name, type_id, tuple([*axes, last][-draw(st.integers(1, 4)) :])))
    return found


def write_random(path: Path, tensors, meta: dict, order: str, seed: int) -> Path:
    random, writer = np.random.default_rng(seed), GgufWriter(path, byte_order=order)
    for key, value in meta.items():
        writer.add(key, value)
    for name, type_id, shape in tensors:
        known = GGML_TYPES[type_id]
        data = random.integers(0, 256, int(np.prod(shape)) // known.values * known.nbytes, np.uint8)
        writer.add_chunks(name, type_id, shape, lambda data=data: [data])
    writer.write()
    return path


def only(folder: Path, *paths: Path) -> None:
    """Check that nothing else lies in the folder, and take away what the next example would meet."""
    assert sorted(folder.iterdir()) == sorted(set(paths))
    for path in paths:
        path.unlink(missing_ok=True)


@QUICK
@given(tensor_lists(), st.dictionaries(keys, scalars, max_size=6), st.sampled_from(["little", "big"]),
       st.integers(0, 99), st.integers(1, 5), st.booleans())  # fmt: skip
def test_random_files_are_split_and_merged(tmp_path: Path, tensors, meta, order, seed, limit, no_tensor_first) -> None:
    whole = write_random(tmp_path / "m.gguf", tensors, meta, order, seed)
    cut = (
        partial(split_model.group_by_count, maximum=limit)
        if seed % 2
        else partial(split_model.group_by_size, maximum=100 * limit)
    )
    parts = [
        one.path
        for one in save_models(
            split_model.split_model(open_lazy_model(whole), tmp_path / "p", cut, no_tensor_first=no_tensor_first)
        )
    ]
    back = save_models([merge_splits(parts[0], tmp_path / "b.gguf")])[0].path
    assert back.read_bytes() == whole.read_bytes()
    only(tmp_path, whole, back, *parts)


@QUICK
@given(tensor_lists(), st.dictionaries(keys, scalars, max_size=8), st.sampled_from(["little", "big"]),
       st.lists(st.sampled_from(WORDS), min_size=1, max_size=4))  # fmt: skip
@pytest.mark.filterwarnings("default::RuntimeWarning")  # random bytes are infinite scales and signalling NaN
def test_random_steps_on_random_files(tmp_path: Path, tensors, meta, order, words) -> None:
    source, out = write_random(tmp_path / "m.gguf", tensors, meta, order, len(words)), tmp_path / "o.gguf"
    before, reasons = source.read_bytes(), []
    try:
        save_models([convert_model(open_lazy_model(source), parse_steps([" -> ".join(words)]), out)])
    except SporeError as error:
        reasons.append(str(error))
        only(tmp_path, source)
    else:
        contents(out)
        assert source.read_bytes() == before
        only(tmp_path, source, out)
    assert all(len(reason.splitlines()) == 1 for reason in reasons)


@QUICK
@given(st.data())
@pytest.mark.filterwarnings("default::RuntimeWarning")
def test_damaged_files(tmp_path: Path, data: st.DataObject) -> None:
    source = write_model(tmp_path / "m.gguf", MIXTURE if data.draw(st.booleans()) else DENSE, Q8_0)
    found = bytearray(source.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        found[data.draw(st.integers(0, min(len(found), 2500) - 1))] = data.draw(st.integers(0, 255))
    source.write_bytes(found[: data.draw(st.sampled_from([len(found), len(found) // 2]))])
    out = tmp_path / "o.gguf"
    word = data.draw(st.sampled_from(WORDS))
    acts = {
        "convert": lambda: [convert_model(open_lazy_model(source), parse_steps([word]), out)],
        "merge": lambda: [merge_splits(source, out)],
        "split": lambda: split_model.split_model(
            open_lazy_model(source), tmp_path / "o", partial(split_model.group_by_count, maximum=9)
        ),
    }
    try:
        written = [one.path for one in save_models(acts[data.draw(st.sampled_from(sorted(acts)))]())]
    except SporeError:
        only(tmp_path, source)
    else:
        only(tmp_path, source, *written)


@QUICK
@given(keys, st.sampled_from(["", ":u8", ":i64", ":f32", ":bool", ":str", ":[u16]", ":[[f64]]", ":[[[[[u8]]]]]"]),
       st.text(max_size=12), st.booleans())  # fmt: skip
def test_random_assignments(tmp_path: Path, key: str, kind: str, text: str, force: bool) -> None:
    source, out = write_model(tmp_path / "m.gguf", {}), tmp_path / "o.gguf"
    try:
        model = set_meta(open_lazy_model(source), [parse_assignment(f"{key}{kind}={text}")], force=force)
        from sporelm.tools.output_file import OutputFile

        save_models([OutputFile(out, model)])
    except SporeError:
        only(tmp_path, source)
    else:
        assert key in open_lazy_model(out).metadata
        only(tmp_path, source, out)
