"""Quantizing whole files: each tensor as its format rounds it, metadata and order of llama.cpp, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from gguf_models import META, WIDTH, contents, values, write_model
from sporelm.errors import RequestError, SporeError
from sporelm.files.gguf import open_gguf
from sporelm.quant import BF16, F16, FORMATS, Q8_0, quantize_tensor
from sporelm.quant.quant_mixes import MIXES
from sporelm.tools import output_file
from sporelm.tools.imatrix_file import Imatrix, ImatrixEntry
from sporelm.tools.lazy_model import open_lazy_model
from sporelm.tools.output_file import save_models
from sporelm.tools.quantize_model import (
    FormatOverride,
    QuantizeOptions,
    list_quantizable_mixes,
    parse_format,
    parse_mix,
    parse_override,
    plan_outputs,
    quantize_model,
)
from sporelm.tools.split_model import group_by_count, split_model

EXPERTS = 3
STACK = {
    "token_embd.weight": (8, WIDTH),
    "blk.0.attn_q.weight": (WIDTH, WIDTH),
    "blk.0.ffn_gate_inp.weight": (EXPERTS, WIDTH),
    "blk.0.ffn_up_exps.weight": (EXPERTS, 32, WIDTH),
    "output_norm.weight": (WIDTH,),
}


def make_model(source: Path, recipe: QuantizeOptions) -> Path:
    path = source.with_name("out.gguf")
    save_models(plan_outputs(quantize_model(open_lazy_model(source), recipe), path), force=True)
    return path


def imatrix_of(source: Path, *, experts: int = EXPERTS) -> Imatrix:
    """Random importance for every matrix of layers; the last expert met nothing."""
    random, entries = np.random.default_rng(9), {}
    with open_gguf(source) as model:
        for name, info in model.tensors.items():
            if name.startswith("blk.") and len(info.shape) > 1:
                count = experts if len(info.shape) == 3 else 1
                counts = np.full(count, 10)
                counts[1:][-1:] = 0
                sums = random.random((count, info.shape[-1]), np.float32) * np.float32(50)
                entries[name] = ImatrixEntry(sums * (counts > 0)[:, None], counts.astype(np.int64))
    return Imatrix(entries, ("text.txt", "more.txt"), 3, path=Path("i.gguf"))


@pytest.fixture(params=["whole", "in pieces"])
def _sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual chunks, and some so small that every tensor is computed in many, which end amid rows."""
    if request.param == "in pieces":
        monkeypatch.setattr(output_file, "COMPUTE_CHUNK_VALUES", 96)


@pytest.mark.usefixtures("_sizes")
@pytest.mark.parametrize("mix", ["Q8_0", "Q4_0", "IQ4_NL", "Q4_K_M", "BF16"])
def test_tensors_are_what_their_formats_make_of_them(tmp_path: Path, mix: str) -> None:
    source = write_model(tmp_path / "m.gguf")
    before, plain = values(source), contents(source)
    for name, (type_name, shape, data) in contents(make_model(source, QuantizeOptions(MIXES[mix]))).items():
        if len(shape) < 2 or name.endswith("bias"):
            assert (type_name, shape, data) == plain[name]
            continue
        expected = {"Q4_K_M": "Q5_0"}.get(mix, mix)
        is_better = name == "output.weight" or (mix == "Q4_K_M" and name.startswith(("blk.1.attn_v", "blk.1.ffn_down")))
        assert type_name == ("Q8_0" if is_better and mix != "BF16" else expected)
        assert data == quantize_tensor(FORMATS[type_name], before[name]).tobytes()


@pytest.mark.usefixtures("_sizes")
@pytest.mark.parametrize("mix", ["Q5_0", "Q4_1"])
def test_importance_reaches_the_columns(tmp_path: Path, mix: str) -> None:
    source = write_model(tmp_path / "m.gguf", STACK, F16, meta=META | {"llama.block_count": 1})
    before, imatrix = values(source), imatrix_of(source)
    done = quantize_model(open_lazy_model(source), QuantizeOptions(MIXES[mix], imatrix))
    assert done.warnings[-1] == (
        "the importance matrix has experts that no text went to: blk.0.ffn_up_exps.weight (1 of 3)"
    )
    for name, (type_name, shape, data) in contents(make_model(source, QuantizeOptions(MIXES[mix], imatrix))).items():
        if "inp" in name or "norm" in name:
            assert type_name in ("F16", "F32")
            continue
        importance = imatrix.importance(name, shape)
        assert (importance is None) == (name == "token_embd.weight")
        assert data == quantize_tensor(FORMATS[type_name], before[name], importance).tobytes()
        if importance is not None:
            assert data != quantize_tensor(FORMATS[type_name], before[name]).tobytes()


def test_metadata_and_order_are_llama_cpps(tmp_path: Path) -> None:
    meta = META | {"general.file_type": 0, "my.key": "kept"}
    source = write_model(tmp_path / "m.gguf", STACK, meta=meta | {"llama.block_count": 1})
    with open_gguf(make_model(source, QuantizeOptions(MIXES["Q5_1"], imatrix_of(source)))) as found:
        assert list(found.metadata)[-6:] == [
            "general.quantization_version",
            "general.file_type",
            "quantize.imatrix.file",
            "quantize.imatrix.dataset",
            "quantize.imatrix.entries_count",
            "quantize.imatrix.chunks_count",
        ]
        assert [found.metadata[key] for key in list(found.metadata)[-6:]] == [2, 9, "i.gguf", "text.txt", 3, 3]
        assert {found.kinds[key] for key in list(found.metadata)[-2:]} == {"u32"}
        assert found.metadata["my.key"] == "kept"
        assert found.names == (
            "output_norm.weight",
            "token_embd.weight",
            "blk.0.attn_q.weight",
            "blk.0.ffn_gate_inp.weight",
            "blk.0.ffn_up_exps.weight",
        )


def test_wishes(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m.gguf")
    overrides = (FormatOverride("blk.1.*", "Q5_1"), FormatOverride("*.attn_[qk].weight", "IQ4_NL"))
    path = make_model(source, QuantizeOptions(MIXES["Q8_0"], overrides=overrides, output="F32", embedding="Q4_0"))
    found = {name: type_name for name, (type_name, *_) in contents(path).items()}
    assert found["blk.0.attn_q.weight"] == "IQ4_NL"
    assert found["blk.1.attn_q.weight"] == "Q5_1", "the first pattern that fits"
    assert found["blk.0.attn_v.weight"] == "Q8_0"
    assert (found["output.weight"], found["token_embd.weight"]) == ("F32", "Q4_0")
    assert found["blk.1.attn_norm.weight"] == "F32"
    pure = {
        type_name for type_name, *_ in contents(make_model(source, QuantizeOptions(MIXES["Q4_0"], pure=True))).values()
    }
    assert pure == {"Q4_0", "F32"}


def test_a_split_model_stays_split(tmp_path: Path) -> None:
    whole = write_model(tmp_path / "m.gguf")
    parts = split_model(open_lazy_model(whole), tmp_path / "m", lambda tensors: group_by_count(tensors, 12))
    paths = [written.path for written in save_models(parts)]
    done = quantize_model(open_lazy_model(paths[0]), QuantizeOptions(MIXES["Q8_0"]))
    written = save_models(plan_outputs(done, tmp_path / "q.gguf", keep_split=True))
    assert [file.path.name for file in written] == [path.name.replace("m-", "q-") for path in paths]
    for before, after in zip(paths, written, strict=True):
        assert list(open_lazy_model(before, alone=True).tensors[0].name) == list(
            open_lazy_model(after.path, alone=True).tensors[0].name
        )
    one = make_model(whole, QuantizeOptions(MIXES["Q8_0"]))
    assert contents(written[0].path) == contents(one)
    with open_gguf(written[0].path) as found:
        assert found.metadata["general.file_type"] == 7
    (single,) = plan_outputs(done, tmp_path / "one.gguf")
    assert save_models([single])[0].path.read_bytes() == one.read_bytes()
    (unsplit,) = plan_outputs(
        quantize_model(open_lazy_model(whole), QuantizeOptions(MIXES["Q8_0"])), tmp_path / "two.gguf", keep_split=True
    )
    assert unsplit.path.name == "two.gguf"


def test_every_mix_that_can_be_made_is_made(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m.gguf", STACK, BF16, meta=META | {"llama.block_count": 1})
    assert {"F16", "Q2_K", "Q4_K_M", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4_MOE", "Q6_K"} <= set(list_quantizable_mixes())
    weighted = imatrix_of(source)
    for mix in list_quantizable_mixes():
        with open_gguf(make_model(source, QuantizeOptions(MIXES[mix], weighted))) as found:
            assert found.metadata["general.file_type"] == MIXES[mix].file_type


def test_what_is_told(tmp_path: Path) -> None:
    done = quantize_model(open_lazy_model(write_model(tmp_path / "m.gguf")), QuantizeOptions(MIXES["Q4_K_M"]))
    assert [warning.partition(":")[0] for warning in done.warnings] == [
        "rows are not whole blocks of Q4_K",
        "rows are not whole blocks of Q6_K",
    ]
    report = done.as_json()
    assert report["bytes_after"] < report["bytes_before"] / 4
    assert report["types"]["Q5_0"] == 13
    assert report["bits_per_weight_before"] == 32
    change = next(change for change in report["changes"] if change["name"] == "blk.0.attn_q.weight")
    assert change == {"name": "blk.0.attn_q.weight", "before": "F32", "after": "Q5_0", "instead_of": "Q4_K"}


def test_an_imatrix_that_does_not_quite_fit(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m.gguf", STACK, meta=META | {"llama.block_count": 1})
    whole = imatrix_of(source)
    entries = dict(whole.entries)
    entries["blk.7.attn_q.weight"] = entries.pop("blk.0.attn_q.weight")
    told = " ".join(quantize_model(open_lazy_model(source), QuantizeOptions(MIXES["Q4_0"], Imatrix(entries))).warnings)
    assert "has nothing for 1 tensors: blk.0.attn_q.weight" in told
    assert "has 1 names without a tensor here: blk.7.attn_q.weight" in told
    entries["blk.0.attn_q.weight"] = ImatrixEntry(np.ones((1, 5), np.float32), np.ones(1, np.int64))
    with pytest.raises(RequestError, match=r"has 5 values for tensor 'blk\.0\.attn_q\.weight'.*another model"):
        quantize_model(open_lazy_model(source), QuantizeOptions(MIXES["Q4_0"], Imatrix(entries)))


def test_refusals(tmp_path: Path) -> None:
    source = open_lazy_model(write_model(tmp_path / "m.gguf"))
    for recipe, reason in (
        (
            QuantizeOptions(MIXES["Q8_0"], overrides=(FormatOverride("attn_v", "F16"),)),
            "no tensor that is quantized fits 'attn_v'",
        ),
        (
            QuantizeOptions(MIXES["Q8_0"], overrides=(FormatOverride("*_norm.*", "F16"),)),
            "norms, biases and small tables stay",
        ),
    ):
        with pytest.raises(RequestError, match=reason):
            quantize_model(source, recipe)
    again = open_lazy_model(write_model(tmp_path / "q.gguf", matrices=Q8_0))
    with pytest.raises(RequestError, match=r"quantized already \('.*' to Q8_0\).*--allow-requantize"):
        quantize_model(again, QuantizeOptions(MIXES["Q4_0"]))
    assert quantize_model(again, QuantizeOptions(MIXES["Q8_0"])).changes == (), "nothing would change"
    assert quantize_model(again, QuantizeOptions(MIXES["Q4_0"], allow_requantize=True)).changes
    nameless = {key: value for key, value in META.items() if key != "general.architecture"}
    with pytest.raises(RequestError, match="this is not a model"):
        quantize_model(open_lazy_model(write_model(tmp_path / "n.gguf", meta=nameless)), QuantizeOptions(MIXES["Q8_0"]))


def test_garbage_is_not_made(tmp_path: Path) -> None:
    shapes = {name: (*shape[:-1], 256) for name, shape in STACK.items()}
    source = write_model(tmp_path / "m.gguf", shapes, meta=META | {"llama.block_count": 1})
    with pytest.raises(RequestError, match=r"IQ2_XS takes .*IQ2_XS.*which cannot be made here"):
        quantize_model(open_lazy_model(source), QuantizeOptions(MIXES["IQ2_XS"], imatrix_of(source)))
    with pytest.raises(
        RequestError, match=r"Q2_K_S needs an importance matrix.*missing for blk\.0\.attn_q\.weight, blk"
    ):
        quantize_model(open_lazy_model(source), QuantizeOptions(MIXES["Q2_K_S"]))
    make_model(source, QuantizeOptions(MIXES["Q2_K_S"], imatrix_of(source)))


@pytest.mark.parametrize(
    ("parse", "text", "reason"),
    [
        (parse_mix, "Q4_K_X", "no 'Q4_K_X'; the nearest is Q4_K_"),
        (parse_mix, "IQ2_XXS", "cannot be made here, only read"),
        (parse_mix, "", "there are F32, F16"),
        (
            lambda text: parse_format("--output-type", text),
            "Q8",
            "--output-type: there is no 'Q8'; the nearest is Q8_0",
        ),
        (parse_override, "blk.*", "PATTERN=TYPE"),
        (parse_override, "=Q8_0", "PATTERN=TYPE"),
        (parse_override, "a=I32", "--tensor: there is no 'I32'"),
    ],
)
def test_words_that_are_not_known(parse, text: str, reason: str) -> None:
    with pytest.raises(SporeError, match=reason):
        parse(text)


def test_words_that_are() -> None:
    assert parse_mix("q4_k").name == "Q4_K_M"
    assert parse_mix("iq4_xs").name == "IQ4_XS"
    assert parse_override("a=b=q8_0") == FormatOverride("a=b", "Q8_0")


def test_values_that_no_block_holds(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m.gguf")
    raw = bytearray(source.read_bytes())
    with open_gguf(source) as model:
        place = model.tensors["blk.0.attn_q.weight"].offset
    raw[place : place + 4] = np.float32(np.nan).tobytes()
    source.write_bytes(raw)
    with pytest.raises(RequestError, match=r"'blk\.0\.attn_q\.weight' holds NaN"):
        make_model(source, QuantizeOptions(MIXES["Q8_0"]))
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]
