"""The steps of convert: each against plain numpy on whole arrays, in one read and in many, and back."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from gguf_models import EXPERTS, FFN, HEAD, HEADS, KV_HEADS, META, MIXTURE, WIDTH, contents, values, write_model
from sporelm.errors import RequestError, SporeError, UnsupportedModel
from sporelm.files.gguf import open_gguf
from sporelm.quant import FORMATS, Q4_1, Q8_0, dequantize_tensor, quantize_tensor
from sporelm.tools import output_file
from sporelm.tools.convert import convert_model
from sporelm.tools.lazy_model import open_lazy_model
from sporelm.tools.output_file import save_models
from sporelm.tools.steps import STEPS, parse_steps
from sporelm.tools.steps.cast_tensors import INTEGER_FORMATS, find_tensor_class, list_cast_targets
from sporelm.tools.steps.sort_tensors import natural_sort_key


def by(steps: str, source: Path, name: str = "out.gguf") -> Path:
    path = source.parent / name
    save_models([convert_model(open_lazy_model(source), parse_steps([steps]), path)], force=True)
    return path


@pytest.fixture(params=["whole", "in pieces"])
def _sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual chunks, and some so small that every tensor is read in many."""
    if request.param == "in pieces":
        monkeypatch.setattr(output_file, "COPY_CHUNK_BYTES", 100)
        monkeypatch.setattr(output_file, "COMPUTE_CHUNK_VALUES", 96)


@pytest.mark.usefixtures("_sizes")
class TestJoined:
    def test_merge_linear_is_concatenation(self, tmp_path: Path) -> None:
        before = values(source := write_model(tmp_path / "m.gguf"))
        after = values(by("merge-linear", source))
        for layer in ("blk.0.", "blk.1."):
            for kind in ("weight", "bias"):
                parts = [before[f"{layer}attn_{part}.{kind}"] for part in "qkv"]
                assert np.array_equal(after[f"{layer}attn_qkv.{kind}"], np.concatenate(parts))
            gate_up = np.concatenate([before[f"{layer}ffn_{part}.weight"] for part in ("gate", "up")])
            assert np.array_equal(after[f"{layer}ffn_gate_up.weight"], gate_up)
        assert not [name for name in after if "attn_q." in name or "ffn_up" in name]
        assert len(after) == len(before) - 2 * (2 + 2 + 1)

    def test_experts_have_gate_then_up_each(self, tmp_path: Path) -> None:
        before = values(source := write_model(tmp_path / "m.gguf", MIXTURE))
        after = values(by("merge-linear", source))
        for kind in ("weight", "bias"):
            parts = [before[f"blk.0.ffn_{part}_exps.{kind}"] for part in ("gate", "up")]
            assert np.array_equal(after[f"blk.0.ffn_gate_up_exps.{kind}"], np.concatenate(parts, axis=1))
        assert after["blk.0.ffn_gate_up_exps.weight"].shape == (EXPERTS, 2 * FFN, WIDTH)

    @pytest.mark.parametrize("number_format", [Q8_0, Q4_1], ids=lambda it: it.name)
    @pytest.mark.parametrize("shapes", ["dense", "experts"])
    @pytest.mark.parametrize("order", ["little", "big"])
    def test_and_back_byte_for_byte(self, tmp_path: Path, number_format, shapes: str, order: str) -> None:
        more = {"shapes": MIXTURE} if shapes == "experts" else {}
        source = write_model(tmp_path / "m.gguf", matrices=number_format, byte_order=order, **more)
        there = by("merge-linear", source, "merged.gguf")
        assert contents(there).keys() != contents(source).keys()
        assert contents(by("split-linear", there)) == contents(source)
        assert contents(by("merge-linear -> !merge-linear", source)) == contents(source)

    def test_permuting_is_a_swap_of_axes(self, tmp_path: Path) -> None:
        before = values(source := write_model(tmp_path / "m.gguf"))
        after = values(by("permute-qk", source))
        for name, array in before.items():
            part = name.partition(".")[2].partition(".")[2].partition(".")[0]
            if part in ("attn_q", "attn_k", "attn_q_norm"):
                array = array.reshape(-1, 2, HEAD // 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
                assert not np.array_equal(after[name], before[name])
            assert np.array_equal(after[name], array)

    def test_permuting_and_back(self, tmp_path: Path) -> None:
        source = write_model(tmp_path / "m.gguf", matrices=Q8_0)
        there = by("permute-qk", source, "there.gguf")
        assert contents(there) != contents(source)
        assert contents(by("permute-qk-rev", there)) == contents(source)

    def test_permuting_commutes_with_merging(self, tmp_path: Path) -> None:
        source = write_model(tmp_path / "m.gguf", matrices=Q8_0)
        assert contents(by("permute-qk -> merge-linear", source, "a.gguf")) == contents(
            by("merge-linear -> permute-qk", source, "b.gguf")
        )

    def test_only_rotated_values_are_permuted(self, tmp_path: Path) -> None:
        source = write_model(tmp_path / "m.gguf", meta=META | {"llama.rope.dimension_count": 4})
        before, after = (values(path)["blk.0.attn_q.weight"] for path in (source, by("permute-qk", source)))
        heads = before.reshape(HEADS, HEAD, WIDTH), after.reshape(HEADS, HEAD, WIDTH)
        assert np.array_equal(heads[1], heads[0][:, [0, 2, 1, 3, *range(4, HEAD)]])

    @pytest.mark.parametrize("source_name", list_cast_targets())
    def test_cast_is_dequantize_and_quantize(self, tmp_path: Path, source_name: str) -> None:
        found = FORMATS[source_name]
        source = write_model(tmp_path / "m.gguf", {"blk.0.ffn_up.weight": (3, 512)}, found)
        with open_gguf(source) as model:
            whole = model.tensor("blk.0.ffn_up.weight").dequantize()
        for name in list_cast_targets():
            target = FORMATS[name]
            got = contents(by(f"cast:linear:{name.lower()}", source))["blk.0.ffn_up.weight"]
            assert got[:2] == (name, (3, 512))
            if name != source_name:
                assert got[2] == quantize_tensor(target, whole).tobytes(), f"{source_name} to {name}"


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {*list_cast_targets(), *INTEGER_FORMATS}))
def test_cast_of_types_that_can_only_be_read(tmp_path: Path, name: str) -> None:
    source = write_model(tmp_path / "m.gguf", {}, raw=[FORMATS[name].ggml_id])
    data = np.frombuffer(contents(source)[f"raw.{name}"][2], np.uint8)
    expected = dequantize_tensor(FORMATS[name], data, (3, FORMATS[name].values))
    got = contents(by("cast:else:F32", source))[f"raw.{name}"]
    assert got == ("F32", expected.shape, expected.tobytes())


def test_merging_is_seen_by_gguf(tmp_path: Path) -> None:
    reader = gguf.GGUFReader(by("merge-linear -> sort", write_model(tmp_path / "m.gguf", matrices=Q8_0)))
    (tensor,) = [tensor for tensor in reader.tensors if tensor.name == "blk.1.attn_qkv.weight"]
    assert list(tensor.shape) == [WIDTH, (HEADS + 2 * KV_HEADS) * HEAD]
    assert tensor.tensor_type.name == "Q8_0"


@pytest.mark.parametrize(
    ("change", "steps", "match"),
    [
        ({"blk.0.attn_v.weight": Q4_1}, "merge-linear", r"attn_v.weight' is Q4_1.*cast:linear:Q8_0"),
        ({}, "merge-linear:heads", "knows the groups attn, ffn, exps, not 'heads'"),
        ({}, "permute-qk:x", "takes no argument"),
        ({}, "sort:x", "takes no argument"),
        ({}, "to-llama", "architecture 'minicpm', not 'llama'"),
        ({}, "bake", r"there is no step 'bake'; there are sort, permute-qk"),
        ({}, "", "there is no step ''"),
        ({}, "cast:linear", "takes CLASS:TYPE"),
        ({}, "cast:heads:Q8_0", "classes are linear, embd, norm, else"),
        ({}, "cast:linear:Q9_9", r"cannot make 'Q9_9'; it can make F32, F16"),
        ({}, "cast:linear:I32", "cannot make 'I32'"),
        ({}, "cast:linear:F16,linear:F32", "names linear twice"),
        ({}, "cast:linear:Q4_K", r"rows of 64 values, Q4_K stores 256 per block"),
        ({}, "filter-meta:", "needs a pattern"),
        ({}, "filter-tensor", "needs a pattern"),
    ],
)
def test_steps_that_cannot_be_done(tmp_path: Path, change, steps: str, match: str) -> None:
    source = write_model(tmp_path / "m.gguf", matrices=Q8_0, others=change)
    with pytest.raises(RequestError, match=match):
        by(steps, source)
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


@pytest.mark.parametrize(
    ("meta", "steps", "match"),
    [
        ({"llama.attention.head_count": 3}, "permute-qk", "cannot be cut into heads"),
        ({"llama.attention.head_count": 0}, "permute-qk", "needs a whole number from 1"),
        ({"llama.attention.head_count": None}, "permute-qk", "'llama.attention.head_count' is missing"),
        ({"llama.rope.dimension_count": 99}, "permute-qk", "99 rotated values"),
        ({"llama.attention.kv_lora_rank": 3}, "permute-qk", "latent attention"),
        ({"llama.attention.head_count_kv": 3}, "merge-linear -> split-linear", "has 128 rows"),
    ],
)
def test_metadata_that_does_not_fit(tmp_path: Path, meta, steps: str, match: str) -> None:
    full = {key: value for key, value in (META | meta).items() if value is not None}
    with pytest.raises(RequestError, match=match):
        by(steps, write_model(tmp_path / "m.gguf", meta=full))


def test_heads_may_differ_by_layer(tmp_path: Path) -> None:
    meta = META | {"llama.attention.head_count": [4, 8], "llama.attention.head_count_kv": [2, 4]}
    shapes = {f"blk.{layer}.attn_q.weight": (64, 32) for layer in range(2)}
    source = write_model(tmp_path / "m.gguf", shapes, meta=meta)
    before, after = values(source), values(by("permute-qk", source))
    for layer, width in ((0, 16), (1, 8)):
        name = f"blk.{layer}.attn_q.weight"
        expected = before[name].reshape(-1, 2, width // 2, 32).swapaxes(1, 2).reshape(64, 32)
        assert np.array_equal(after[name], expected)


def test_a_network_without_gate_or_an_odd_bias(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m.gguf", {"blk.0.ffn_up.weight": (8, 32), "blk.0.ffn_down.weight": (32, 8)})
    assert contents(by("merge-linear", source)) == contents(source)
    lone = write_model(tmp_path / "n.gguf", {"blk.0.attn_q.bias": (8,)})
    with pytest.raises(RequestError, match=r"'blk.0.attn_q.bias' has no 'blk.0.attn_k.bias' beside it"):
        by("merge-linear", lone)


def test_classes() -> None:
    assert find_tensor_class("token_embd.weight", 2) == find_tensor_class("output.weight", 2) == "embd"
    assert find_tensor_class("blk.3.ffn_up_exps.weight", 2) == "linear"
    assert find_tensor_class("output_norm.weight", 1) == find_tensor_class("blk.0.attn_q_norm.weight", 1) == "norm"
    assert find_tensor_class("blk.0.attn_q.bias", 1) == find_tensor_class("blk.0.ffn_gate_inp.weight", 2) == "else"
    for part in ("time_mix_w1", "shortconv.conv", "laurel_l", "attn_rel_b"):
        assert find_tensor_class(f"blk.0.{part}.weight", 2) == "else"
    assert find_tensor_class("position_embd.weight", 2) == "else"
    assert find_tensor_class("blk.0.time_mix_key.weight", 2) == "linear"


def test_cast_by_class_and_the_file_type(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m.gguf", meta=META | {"general.file_type": 0})
    found = contents(out := by("cast:linear:Q8_0,embd:F16,norm:BF16,else:F16", source))
    types = {name: entry[0] for name, entry in found.items()}
    assert types["token_embd.weight"] == types["output.weight"] == types["blk.0.attn_q.bias"] == "F16"
    assert types["blk.0.attn_norm.weight"] == types["output_norm.weight"] == "BF16"
    assert types["blk.1.ffn_down.weight"] == "Q8_0"
    with open_gguf(out) as model:
        assert model.metadata["general.file_type"] == 7
        assert model.metadata["general.quantization_version"] == 2
    with open_gguf(by("cast:linear:F16", source)) as model:
        assert model.metadata["general.file_type"] == 1
        assert "general.quantization_version" not in model.metadata


def test_cast_of_a_big_endian_file(tmp_path: Path) -> None:
    little, big = (write_model(tmp_path / f"{order}.gguf", byte_order=order) for order in ("little", "big"))
    a, b = (values(by("cast:linear:Q4_1", source)) for source in (little, big))
    assert all(np.array_equal(a[name], b[name]) for name in a)


def test_cast_names_the_tensor_with_nan(tmp_path: Path) -> None:
    from sporelm.files.gguf import GgufWriter

    writer = GgufWriter(tmp_path / "m.gguf")
    array = np.zeros((8, 32), np.float32)
    array[5, 3] = np.nan
    writer.add_tensor("blk.0.ffn_up.weight", array)
    writer.write()
    with pytest.raises(RequestError, match=r"'blk.0.ffn_up.weight' holds NaN or infinity"):
        by("cast:linear:Q8_0", tmp_path / "m.gguf")


def test_cast_of_a_type_known_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(FORMATS, "IQ1_M", raising=False)
    source = write_model(tmp_path / "m.gguf", {}, raw=[29])
    assert contents(by("cast:linear:F16", source)) == contents(source)
    with pytest.raises(UnsupportedModel, match=r"raw.IQ1_M.*cannot be converted to numbers"):
        by("cast:else:F16,linear:F16", write_model(tmp_path / "n.gguf", {}, raw=[29]))


def test_sort(tmp_path: Path) -> None:
    names = ["output.weight", "blk.10.attn_q.weight", "blk.2.ffn_up.weight", "blk.2.attn_q.weight", "blk.2.zebra",
             "blk.2.attn_norm.weight", "v.blk.1.x.weight", "blk.2.attn_q.bias", "output_norm.weight", "mm.10.weight",
             "mm.9.weight", "token_embd.weight"]  # fmt: skip
    out = by("sort", write_model(tmp_path / "m.gguf", dict.fromkeys(names, (2, 32))))
    assert list(contents(out)) == [
        "token_embd.weight", "blk.2.attn_norm.weight", "blk.2.attn_q.weight", "blk.2.attn_q.bias",
        "blk.2.ffn_up.weight", "blk.2.zebra", "blk.10.attn_q.weight", "v.blk.1.x.weight", "mm.9.weight",
        "mm.10.weight", "output_norm.weight", "output.weight",
    ]  # fmt: skip
    assert natural_sort_key("blk.9.") < natural_sort_key("blk.10.")


def test_filters(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m.gguf")
    out = by("filter-tensor:!blk.1.*|output* -> filter-meta:tokenizer.*", source)
    assert all(name.startswith(("blk.0.", "token_embd")) for name in contents(out))
    with open_gguf(out) as model:
        kept = [key for key in META if key.startswith("tokenizer.")]
        assert list(model.metadata) == ["general.architecture", *kept]
    with open_gguf(by("filter-meta:!tokenizer.*", source)) as model:
        assert list(model.metadata) == [key for key in META if not key.startswith("tokenizer.")]


@pytest.mark.parametrize(("steps", "what"), [("filter-tensor:nope", "tensor"), ("filter-meta:no*", "metadata key")])
def test_a_filter_that_fits_nothing_is_refused(tmp_path: Path, steps: str, what: str) -> None:
    source = write_model(tmp_path / "m.gguf")
    with pytest.raises(RequestError, match=f"no {what} fits 'no"):
        by(steps, source)
    assert contents(by("filter-tensor:!*", source)) == {}


def test_two_tensors_of_one_name(tmp_path: Path) -> None:
    shapes = {"blk.0.attn_qkv.weight": (128, 64), "blk.0.attn_q.weight": (64, 64)}
    with pytest.raises(SporeError, match="is there already"):
        by("split-linear", write_model(tmp_path / "m.gguf", shapes))


def test_every_step_has_a_line_of_help() -> None:
    from sporelm.cli import gguf_convert

    assert not [name for name in STEPS if name not in gguf_convert.make_parser().format_help()]


def test_rows_are_not_moved_twice_and_merged_weights_are_told(tmp_path: Path) -> None:
    model = open_lazy_model(write_model(tmp_path / "m.gguf"))
    once = parse_steps(["permute-qk"])[0](model)
    assert once.value("sporelm.qk_order") == "adjacent"
    assert "permute-qk-rev" in once.notes[0]
    with pytest.raises(RequestError, match="adjacent already"):
        parse_steps(["permute-qk"])[0](once)
    back = parse_steps(["permute-qk-rev"])[0](once)
    assert (dict(back.metadata), back.notes) == (dict(model.metadata), ())
    merged = parse_steps(["merge-linear"])[0](model)
    assert "split-linear undoes it" in merged.notes[0]
    assert parse_steps(["split-linear"])[0](merged).notes == ()
