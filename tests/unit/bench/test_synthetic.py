"""Synthetic models: the same file on every machine, with the drawn values, readable by other programs."""

import hashlib
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from sporelm import settings
from sporelm.bench import synthetic
from sporelm.bench.model_shapes import SHAPES, DeltaNetModelShape, GemmaModelShape, LatentModelShape, ModelShape
from sporelm.bench.synthetic import (
    PortableRandom,
    draw_normals,
    is_synthetic,
    parse_synthetic_name,
    synthetic_file,
    synthetic_file_name,
)
from sporelm.bench.synthetic_formats import SYNTHETIC_MIXES, assign_formats, list_formats
from sporelm.bench.synthetic_vocabulary import generate_merges
from sporelm.checkpoints import config_from_gguf, open_model
from sporelm.checkpoints.latent_keys import get_latent
from sporelm.checkpoints.loader import check_shapes, map_tensors
from sporelm.errors import ModelNotFound, RequestError
from sporelm.files import store
from sporelm.files.gguf import open_gguf
from sporelm.models import build
from sporelm.models.architectures.qwen3next import Qwen3NextConfig
from sporelm.models.config import Experts
from sporelm.models.latent_config import LatentAttentionShape
from sporelm.text import load_tokenizer

SHA256 = "1916bbfb9c8686396c62740c38bf310211c2135ae7852078efaf2153ad52ee69"
EVERY = [f"synthetic:tiny:{name}" for name in list_formats()]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for synthetic models."""
    place = tmp_path / "synthetic"
    kept = settings.Setting("SPORE_SYNTHETIC_MODELS", lambda: str(place), "")
    monkeypatch.delenv("SPORE_SYNTHETIC_MODELS", raising=False)
    monkeypatch.setattr(settings, "SYNTHETIC_MODELS", kept)
    return place


def test_the_shape_of_the_issue() -> None:
    shape = SHAPES["llama-1b"]
    assert (shape.layers, shape.width, shape.ffn, shape.heads, shape.kv_heads) == (16, 2048, 8192, 32, 8)
    assert (shape.head_dim, shape.vocab, shape.tied) == (64, 32768, False)


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_are_possible(name: str) -> None:
    shape = SHAPES[name]
    assert shape.heads % shape.kv_heads == 0
    delta, gemma = isinstance(shape, DeltaNetModelShape), isinstance(shape, GemmaModelShape)
    assert shape.heads * shape.head_dim == shape.width or shape.experts or delta or gemma
    assert shape.used <= shape.experts
    assert 258 <= shape.vocab <= 258 + 26**2 + 26**3 + 26**4, "at most as many tokens as invented words"
    if isinstance(shape, LatentModelShape):
        assert len(shape.tensors()) == 15 * shape.layers - 4 + 3
        return
    tensors = (
        14 - 3 / 4 if delta else 9 + 3 * bool(shape.experts) + 4 * gemma
    )  # of a layer; of attention there is one in four
    assert len(shape.tensors()) == tensors * shape.layers + 3 - shape.tied


def test_the_content_is_the_same_everywhere() -> None:
    """Raise RECIPE with these sums: a file of the same name must have the same bytes."""
    path = synthetic_file("synthetic:tiny:q8_0")
    assert synthetic.RECIPE == 1
    assert path.name == "tiny-l2-w256-f512-h4-k2-d64-v512-q8_0-r1.gguf"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == SHA256


@pytest.mark.parametrize(
    "model", [EVERY[0], *(pytest.param(model, marks=pytest.mark.all) for model in EVERY[1:])], ids=str
)
def test_values_are_those_drawn(model: str) -> None:
    path = synthetic_file(model)
    with open_gguf(path) as file:
        assert set(file.tensors) == set(SHAPES["tiny"].tensors())
        for name, info in file.tensors.items():
            values, form = file.tensor(name).dequantize(), file.tensor(name).format
            coarse = form.nbytes * 8 < 3 * form.values  # rounding to so few levels moves the deviation
            assert values.shape == info.shape == SHAPES["tiny"].tensors()[name]
            assert np.isfinite(values).all()
            if values.ndim == 1:
                assert np.abs(values - 1).max() < 0.5
            else:
                assert values.std() == pytest.approx(256**-0.5, rel=0.2 if coarse else 0.02)
                assert abs(values.mean()) < 0.002
                assert len(np.unique(values, axis=0)) > 0.9 * len(values), "a row of 256 is one run: few come twice"


def test_another_reader_agrees() -> None:
    gguf = pytest.importorskip("gguf")
    path = synthetic_file("synthetic:tiny:q4_k_m")
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    with open_gguf(path) as file:
        for name, info in file.tensors.items():
            assert theirs[name].tensor_type == file.tensor(name).format.ggml_id
            values = gguf.dequantize(theirs[name].data, theirs[name].tensor_type)
            assert np.array_equal(file.tensor(name).dequantize(), values.reshape(info.shape))


def test_the_file_describes_its_model() -> None:
    path = synthetic_file("synthetic:tiny:q4_0")
    shape = SHAPES["tiny"]
    with open_gguf(path) as file:
        shapes = {name: info.shape for name, info in file.tensors.items()}
        config = config_from_gguf(file.metadata, shapes, "tiny")
    for name in ("layers", "width", "ffn", "heads", "kv_heads", "head_dim", "vocab", "rope_theta"):
        assert getattr(config, name) == getattr(shape, name), name
    assert (config.context_length, config.tie_embeddings) == (shape.context, shape.tied)


@pytest.mark.parametrize("number_format", ["q4_k", "q4_k_m"])
def test_a_mixture_describes_its_experts(number_format: str) -> None:
    path = synthetic_file(f"synthetic:tiny-moe:{number_format}")
    shape = SHAPES["tiny-moe"]
    assert path.name == f"tiny-moe-l2-w256-f256-h4-k2-d64-v512-e6-u2-{number_format}-r1.gguf"
    with open_gguf(path) as file:
        shapes = {name: info.shape for name, info in file.tensors.items()}
        config = config_from_gguf(file.metadata, shapes, "tiny-moe")
        forms = {name: file.tensor(name).format.name for name in shapes}
    assert shapes == shape.tensors()
    assert config.architecture == "qwen3moe"
    assert config.experts == Experts(count=6, used=2, ffn=256, renormalize=True)
    assert forms["blk.0.ffn_gate_inp.weight"] == forms["blk.0.attn_q_norm.weight"] == "F32"
    assert forms["blk.0.ffn_up_exps.weight"] == "Q4_K"


def test_latent_attention_is_described() -> None:
    path = synthetic_file("synthetic:tiny-latent:q4_k_m")
    assert path.name == "tiny-latent-l2-w256-f512-h4-k1-d192-v512-e6-u2-256-r256-q4_k_m-r1.gguf"
    source = open_model(path)
    params = build(source.config).params()
    check_shapes(source, map_tensors(source, params))
    assert get_latent(source.config) == LatentAttentionShape(kv_lora_rank=256, qk_rope_head_dim=64, v_head_dim=128)
    assert source.config.head_dim == 192
    source.close()


def test_windows_and_norms_of_gemma_are_described() -> None:
    path = synthetic_file("synthetic:tiny-gemma3:q4_k_m")
    assert path.name == "tiny-gemma3-l6-w256-f512-h2-k1-d256-v512-n512-q4_k_m-r1.gguf"
    source = open_model(path)
    params = build(source.config).params()
    check_shapes(source, map_tensors(source, params))
    assert source.config.window == 512
    names = {param.name for param in params}
    assert {f"layers.0.{norm}.weight" for norm in ("attn_post_norm", "ffn_post_norm", "attn_q_norm")} <= names
    source.close()


def test_gated_delta_nets_are_described() -> None:
    path = synthetic_file("synthetic:tiny-delta:q4_k_m")
    assert path.name == "tiny-delta-l4-w256-f256-h2-k1-d64-v512-s1-2-q4_k_m-r1.gguf"
    with open_gguf(path) as file:
        shapes = {name: info.shape for name, info in file.tensors.items()}
        config = config_from_gguf(file.metadata, shapes, "tiny-delta")
        rates = file.tensor("blk.0.ssm_a").dequantize()
    assert shapes == SHAPES["tiny-delta"].tensors()
    assert isinstance(config, Qwen3NextConfig)
    shape = config.delta_net
    assert (shape.num_key_heads, shape.num_value_heads, shape.key_head_dim, shape.value_head_dim) == (1, 2, 128, 128)
    assert (sorted(config.attention_layers), config.rotary, shape.head_order) == ([3], 16, "all")
    assert float(rates.max()) < 0, "states fade"


def test_the_vocabulary_reads_and_writes_any_text() -> None:
    tokenizer = load_tokenizer(synthetic_file("synthetic:tiny:q4_0"))
    assert tokenizer.vocab_size == SHAPES["tiny"].vocab
    text = "an ant, 7 µ\n\ttabs 私"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    assert ids[0] == 258 + 13, "'an' is the fourteenth invented word"
    assert len({"".join(parts) for parts in generate_merges()}) == 26**2 + 26**3 + 26**4


def test_what_is_there_is_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages: list[tuple[str, int, int]] = []
    path = synthetic_file("synthetic:Tiny:Q4_0", lambda *stage: stages.append(stage))
    assert stages[0][:2] == ("writing", 0)
    assert stages[-1][1] == stages[-1][2] > 0
    assert [entry.name for entry in folder.iterdir()] == [path.name], "nothing is left beside it"
    monkeypatch.setattr(synthetic, "write_synthetic_model", lambda *words: pytest.fail("written again"))
    assert synthetic_file("synthetic:tiny:q4_0") == path


def test_a_full_disk_is_seen_before_anything_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(folder.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1_000_000_000))
    with pytest.raises(RequestError, match=r"takes 16\.1 GB, .* has 1\.0 GB left: .*SPORE_SYNTHETIC_MODELS"):
        synthetic_file("synthetic:llama-8b:f16")
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be(folder: Path) -> None:
    folder.write_text("a file")
    with pytest.raises(RequestError, match="SPORE_SYNTHETIC_MODELS"):
        synthetic_file("synthetic:tiny:q4_0")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("synthetic:", r"a shape and a number format are needed; shapes: tiny, .*llama-1b.*; formats: f32, .*q4_k_m"),
        ("synthetic:llama-9b:q4_0", r"no shape 'llama-9b'; shapes: .*llama-8b"),
        ("synthetic:llama-1b", r"a number format is needed, as in synthetic:llama-1b:q4_0; formats: f32"),
        ("synthetic:llama-1b:q3_x", r"no format 'q3_x', as in .*formats: .*q8_0"),
        ("synthetic:llama-1b:q4_0:more", "no format 'q4_0:more'"),
        ("synthetic:../../x:q4_0", "no shape"),
    ],
)
def test_names_that_are_not_known(model: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        synthetic_file(model)


def test_rows_that_are_not_whole_blocks() -> None:
    with pytest.raises(RequestError, match=r"rows of 576 values .*q4_k's 256: take one of f32, .*q4_0"):
        synthetic_file("synthetic:smollm2-135m:q4_k")
    found = assign_formats("q4_k_m", SHAPES["smollm2-135m"], "")
    # As llama.cpp's own Q4_K_M of this model: rows of 576 in smaller blocks, those of 1536 as they are.
    assert found["token_embd.weight"].name == "Q8_0"
    assert found["blk.0.attn_q.weight"].name == "Q5_0"
    assert found["blk.0.attn_v.weight"].name == "Q8_0"
    assert found["blk.0.ffn_down.weight"].name == "Q6_K"
    assert found["blk.3.ffn_down.weight"].name == "Q4_K"


def test_mixes_choose_as_llama_cpp_does() -> None:
    shape = SHAPES["llama-1b"]

    def counted(name: str, part: str) -> dict[str, int]:
        return dict(Counter(kind.name for tensor, kind in assign_formats(name, shape, "").items() if part in tensor))

    better = {0, 1, 4, 7, 10, 13, 14, 15}  # of 16 layers: two at each end, every third between
    found = assign_formats("q4_k_m", shape, "")
    assert {layer for layer in range(16) if found[f"blk.{layer}.ffn_down.weight"].name == "Q6_K"} == better
    assert counted("q4_k_m", "attn_v") == {"Q6_K": 8, "Q4_K": 8}
    assert counted("q4_k_s", "attn_v") == {"Q5_K": 4, "Q4_K": 12}
    assert counted("q4_k_s", "ffn_down") == {"Q5_K": 2, "Q4_K": 14}
    assert counted("q5_k_s", "blk") == {"F32": 32, "Q5_K": 7 * 16}
    assert counted("q5_k_m", "ffn_down") == {"Q6_K": 8, "Q5_K": 8}
    for name in SYNTHETIC_MIXES:
        assert assign_formats(name, shape, "")["output.weight"].name == "Q6_K"
        assert assign_formats(name, shape, "")["token_embd.weight"].name == SYNTHETIC_MIXES[name].main
    assert counted("q4_0", "weight") == {"F32": 33, "Q4_0": 2 + 7 * 16}


def test_every_fallback_has_blocks_of_32() -> None:
    narrow = ModelShape(1, 64, 96, 1, 1, 64, 300, 64, 1e4)
    for name in SYNTHETIC_MIXES:
        assert {kind.values for kind in assign_formats(name, narrow, "").values()} <= {1, 32}


def test_draws_look_normal() -> None:
    values = draw_normals(PortableRandom(1), 1 << 17)
    assert values.mean() == pytest.approx(0, abs=0.01)
    assert values.std() == pytest.approx(1, abs=0.01)
    assert (np.abs(values) > 2).mean() == pytest.approx(0.0455, abs=0.004)
    assert not np.array_equal(draw_normals(PortableRandom(1, 2), 64), draw_normals(PortableRandom(1, 3), 64))


def test_elsewhere_they_are_refused() -> None:
    with pytest.raises(ModelNotFound, match="only 'spore bench' accepts it"):
        store.resolve("synthetic:tiny:q4_0")
    assert is_synthetic("synthetic:")
    assert not is_synthetic("smollm2")
    assert parse_synthetic_name("synthetic:LLAMA-1B:Q4_K_M") == ("llama-1b", "q4_k_m")
    assert synthetic_file_name("llama-1b", "q4_k_m") == "llama-1b-l16-w2048-f8192-h32-k8-d64-v32768-q4_k_m-r1.gguf"
