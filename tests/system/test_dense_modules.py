"""Modules after pooling: sentence-transformers' Dense and Normalize modules, in their order."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from close import assert_close
from encoder_files import write_encoder
from families import CASES, ENCODERS
from sporelm import LLM, AsyncLLM
from sporelm.checkpoints.pooling import read_folder_pooling
from sporelm.checkpoints.prompts import Prompts, read_prompts
from sporelm.cli.main import main
from sporelm.errors import BackendError, ContextOverflow, ModelFileError, RequestError, UnsupportedModel
from sporelm.tools.hf.from_hf import from_hf
from sporelm.tools.hf.save_folder import save_folder
from sporelm.tools.hf.to_hf import to_hf
from sporelm.tools.output_file import OutputFile, save_models

EVERY = {case.name: case for case in (*ENCODERS, *CASES)}
TEXTS = ["a dog", "some words, and more of them", "the"]
PLAIN = {"bias": False, "activation_function": "torch.nn.modules.linear.Identity"}
TANH = {"bias": True, "activation_function": "torch.nn.modules.activation.Tanh"}
RELU = {"bias": False, "activation_function": "torch.nn.modules.activation.ReLU"}


def with_modules(folder: Path, width: int, modules: list[tuple[str, dict[str, Any]]], pooling: str = "mean") -> Path:
    """The folder with the modules behind its pooling: of a Dense its width and its configuration."""
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": pooling}))
    random = np.random.RandomState(3)
    for number, (kind, config) in enumerate(modules, 2):
        kinds.append((kind, place := f"{number}_{kind}"))
        (folder / place).mkdir()
        if kind == "Dense":
            out = config["out_features"]
            (folder / place / "config.json").write_text(json.dumps({"in_features": width} | config))
            tensors = {"linear.weight": random.randn(out, width).astype(np.float32)}
            tensors |= {"linear.bias": random.randn(out).astype(np.float32)} if config["bias"] else {}
            save_file(tensors, folder / place / "model.safetensors")
            width = out
    listed = [{"idx": n, "path": place, "type": f"x.{kind}"} for n, (kind, place) in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(listed))
    return folder


def computed(folder: Path, rows: np.ndarray) -> np.ndarray:
    """Apply sentence-transformers' modules to pooled rows, in numpy."""
    x = rows.astype(np.float64)
    for module in json.loads((folder / "modules.json").read_text())[2:]:
        if module["type"] == "x.Normalize":
            x = x / np.linalg.norm(x, axis=1, keepdims=True)
            continue
        place = folder / module["path"]
        weights, config = load_file(place / "model.safetensors"), json.loads((place / "config.json").read_text())
        x = x @ weights["linear.weight"].T.astype(np.float64) + weights.get("linear.bias", 0)
        name = config["activation_function"].rpartition(".")[2]
        x = {"Tanh": np.tanh, "ReLU": lambda y: np.maximum(y, 0), "Identity": lambda y: y}[name](x)
    return x


ORDERS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "tanh": [("Dense", TANH | {"out_features": 20}), ("Normalize", {})],
    "normalized before": [("Normalize", {}), ("Dense", TANH | {"out_features": 20})],
    "two": [("Dense", PLAIN | {"out_features": 64}), ("Dense", RELU | {"out_features": 33}), ("Normalize", {})],
}


@pytest.mark.parametrize("order", ORDERS)
def test_dense_layers_are_computed_in_their_order(tmp_path: Path, order: str) -> None:
    folder = write_encoder(tmp_path, EVERY["bert"])
    with LLM(folder, threads=1) as llm:
        rows = llm.embed(TEXTS, pooling="mean", normalize=False)
    with_modules(folder, 48, ORDERS[order])
    expected = computed(folder, rows)
    with LLM(folder, threads=1) as llm:
        found = llm.embed(TEXTS, normalize=False)
        alone = [llm.embed(text, normalize=False)[0] for text in TEXTS]
        unit = llm.embed(TEXTS)
    lengths = np.linalg.norm(expected, axis=1, keepdims=True)
    assert_close(unit, expected / lengths, "f32")
    assert_close(found, np.stack(alone), "exact")
    if order == "normalized before":  # else the last module says what `normalize` asks for
        assert_close(found, expected, "f32")
    with pytest.raises(UnsupportedModel, match="its vectors go through Dense modules, which a GGUF file of 'bert'"):
        from_hf(folder)


def test_a_vector_with_nan_is_reported(tmp_path: Path) -> None:
    folder = with_modules(write_encoder(tmp_path, EVERY["bert"]), 48, [("Dense", PLAIN | {"out_features": 4})])
    huge = {"linear.weight": np.full((4, 48), 3e38, np.float32)}
    save_file(huge, folder / "2_Dense" / "model.safetensors")
    with LLM(folder, threads=1) as llm, pytest.raises(BackendError, match="an embedding is not a number"):
        llm.embed(TEXTS)


def test_a_decoders_vectors_go_through_them_too(tmp_path: Path) -> None:
    """As do those of Qwen3-Embedding's kind."""
    folder = write_encoder(tmp_path, EVERY["qwen3"])
    with LLM(folder, threads=1) as llm:
        rows = llm.embed(TEXTS, pooling="last", normalize=False)
    with_modules(folder, rows.shape[1], [("Dense", TANH | {"out_features": 12})], pooling="lasttoken")
    with LLM(folder, threads=1) as llm:
        assert llm.config.pooling == "last"
        assert_close(llm.embed(TEXTS, normalize=False), computed(folder, rows), "f32")


def gemma(folder: Path, name: str = "gemma-embedding", **more: Any) -> Path:
    """A tiny EmbeddingGemma, whole."""
    case = EVERY[name]
    folder = write_encoder(folder, type(case)(name, case.config | more, None, reads=True))
    width = case.config["hidden_size"] if "hidden_size" not in more else more["hidden_size"]
    two = [("Dense", PLAIN | {"out_features": 4 * width}), ("Dense", PLAIN | {"out_features": width})]
    return with_modules(folder, width, two)


def test_embedding_gemma_goes_to_gguf_and_back_with_its_dense_layers(tmp_path: Path) -> None:
    folder, file, back = gemma(tmp_path / "model"), tmp_path / "m.gguf", tmp_path / "back"
    converted = from_hf(folder).model
    save_models([OutputFile(file, converted)])
    said = {key: entry.value for key, entry in converted.metadata.items() if "dense" in key or "pooling" in key}
    ends = {"2_feat_in": 48, "2_feat_out": 192, "3_feat_in": 192, "3_feat_out": 48}
    assert said == {f"gemma-embedding.dense_{key}": size for key, size in ends.items()} | {
        "gemma-embedding.pooling_type": 1
    }
    save_folder(to_hf(file), back, shard_bytes=1 << 30)
    found = []
    for path in (folder, file, back):
        with LLM(path, threads=1) as llm:
            assert llm.config.pooling == "mean"
            found.append(llm.embed(TEXTS))
    assert_close(found[1], found[0], "f32")
    assert_close(found[2], found[1], "f32")
    for place in ("2_Dense", "3_Dense"):
        ours, theirs = (load_file(where / place / "model.safetensors") for where in (back, folder))
        assert_close(ours["linear.weight"], theirs["linear.weight"], "exact")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"activation_function": "torch.nn.modules.activation.GELU"}, UnsupportedModel, "'GELU' is not supported"),
        ({"module_input_name": "token_embeddings"}, UnsupportedModel, "module_input_name 'token_embeddings' is not"),
        ({"in_features": 47}, ModelFileError, "2_Dense expects 47 inputs; it gets 48"),
        ({"out_features": 9}, ModelFileError, "dense_2.weight is .*; it must be"),
        ({"bias": True}, ModelFileError, "lacks 1 of its"),
    ],
)
def test_other_dense_modules_are_refused(
    tmp_path: Path, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    folder = with_modules(write_encoder(tmp_path, EVERY["bert"]), 48, [("Dense", PLAIN | {"out_features": 20})])
    path = folder / "2_Dense" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(error, match=message):
        LLM(folder, threads=1)


@pytest.mark.all
@pytest.mark.parametrize(("form", "limit"), [("F16", 1e-3), ("Q4_K_M", 2e-2)])
def test_llama_cpp_makes_the_same_vectors_of_the_same_file(
    tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str], form: str, limit: float
) -> None:
    from peer_logits import load as load_peer
    from peer_logits import peer_vector

    if not (peer := os.environ.get("SPORE_PEER")):
        pytest.skip("SPORE_PEER names no folder with llama.cpp's programs and libraries: bench/peer.sh builds one")
    wide = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "vocab_size": 320, "head_dim": 32}
    folder = gemma(tmp_path / "model", **wide, query_pre_attn_scalar=32)
    file = tmp_path / "m.gguf"
    save_models([OutputFile(file, from_hf(folder, type_name="f16").model)])
    if form != "F16":
        assert main(["gguf", "quantize", str(file), "-t", form, "-o", str(tmp_path / "q.gguf")]) == 0
        file = tmp_path / "q.gguf"
        capsys.readouterr()
    ids = np.random.RandomState(1).randint(5, 320, 70).tolist()
    with LLM(file, threads=1) as llm:
        ours = llm.embed([ids], normalize=False)[0]
    theirs = peer_vector(load_peer(Path(peer), root), file, ids, 256)
    assert np.abs(ours - theirs).max() / np.ptp(theirs) <= limit


def test_prompts_of_the_models_makers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = with_modules(write_encoder(tmp_path, EVERY["bert"]), 48, [])
    said: dict[str, Any] = {"prompts": {"query": "find: ", "document": ""}, "default_prompt_name": None}
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps(said))
    with LLM(folder, threads=1) as llm:
        plain, query = llm.embed("a dog"), llm.embed("a dog", prompt_name="query")
        assert_close(query, llm.embed("find: a dog"), "exact")
        assert_close(llm.embed("a dog", prompt_name="document"), plain, "exact")
        with pytest.raises(RequestError, match="prompt_name is 'passage': it is one of document, query"):
            llm.embed("a dog", prompt_name="passage")
        with pytest.raises(RequestError, match="prompt_name is \\['query'\\]: it is one of document, query"):
            llm.embed("a dog", prompt_name=["query"])  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="a prompt can precede a text only, not token ids"):
            llm.embed([[5, 6]], prompt_name="query")
    assert main(["embed", str(folder), "a dog", "--prompt-name", "query", "--threads", "1", "--json"]) == 0
    assert_close(json.loads(capsys.readouterr().out)["vectors"], query, "f32")
    path.write_text(json.dumps(said | {"default_prompt_name": "query"}))
    with LLM(folder, threads=1) as llm:
        assert_close(llm.embed("a dog"), query, "exact")
        assert_close(llm.embed("a dog", prompt_name=""), plain, "exact")
        assert_close(asyncio.run(looped(folder)), query, "exact")
    assert any("cannot hold prompts (query): prepend them" in note for note in from_hf(folder).notes)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean", "include_prompt": False}))
    with LLM(folder, threads=1) as llm, pytest.raises(UnsupportedModel, match="include_prompt False is not supported"):
        llm.embed("a dog")
    with LLM(folder, threads=1) as llm:
        assert_close(llm.embed("a dog", prompt_name=""), plain, "exact")


@pytest.mark.parametrize("lower", [False, True])
def test_texts_are_read_in_lower_case_where_the_folder_says_so(tmp_path: Path, lower: bool) -> None:
    folder = write_encoder(tmp_path, EVERY["xlm-roberta"])
    said = {"max_seq_length": 512, "do_lower_case": lower}
    (folder / "sentence_bert_config.json").write_text(json.dumps(said))
    with LLM(folder, threads=1) as llm:
        assert (llm.embed_ids("A dog") == llm.embed_ids("a dog")) is lower


def test_longer_texts_are_cut_where_the_folder_says_so_if_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As sentence-transformers cuts them: what stands around a text counts, and stays."""
    folder = write_encoder(tmp_path, EVERY["bert"])
    path = folder / "sentence_bert_config.json"
    path.write_text(json.dumps({"max_seq_length": 6, "do_lower_case": False}))
    long = "a b c d e f g h"
    with LLM(folder, threads=1) as llm:
        whole, cut = llm.embed_ids(long), llm.embed_ids(long, truncate=True)
        assert len(cut) == 6 < len(whole)
        assert cut == [*whole[:5], whole[-1]]
        assert llm.embed_ids("a b", truncate=True) == llm.embed_ids("a b")
        assert llm.embed_ids(whole, truncate=True) == cut
        vectors = llm.embed([cut, whole])
        assert_close(llm.embed(long, truncate=True), vectors[:1], "exact")
        assert_close(llm.embed(long), vectors[1:], "exact")
    assert main(["embed", str(folder), long, "--truncate", "--threads", "1", "--json"]) == 0
    assert_close(json.loads(capsys.readouterr().out)["vectors"], vectors[:1], "f32")
    path.write_text(json.dumps({"max_seq_length": None}))
    with LLM(folder, threads=1, max_context=8) as llm:
        assert len(llm.embed_ids(long, truncate=True)) == 8
        with pytest.raises(ContextOverflow):
            llm.embed(long)
    path.write_text(json.dumps({"max_seq_length": 0}))
    with LLM(folder, threads=1) as llm, pytest.raises(ModelFileError, match="max_seq_length is 0"):
        llm.embed("a")


@pytest.mark.parametrize("key", ["word_embedding_dimension", "embedding_dimension"])
def test_a_pooling_of_rows_of_another_width_is_refused(tmp_path: Path, key: str) -> None:
    folder = write_encoder(tmp_path, EVERY["bert"])
    (folder / "1_Pooling").mkdir()
    (folder / "modules.json").write_text(
        json.dumps([{"type": "x.Transformer"}, {"type": "x.Pooling", "path": "1_Pooling"}])
    )
    said = {"pooling_mode_mean_tokens": True, key: 48}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(said))
    assert read_folder_pooling(folder, 48).pooling == "mean"
    with pytest.raises(ModelFileError, match=f"{key} is 48, the width of the model is 70; one of the two"):
        read_folder_pooling(folder, 70)


async def looped(folder: Path) -> np.ndarray:
    async with AsyncLLM(folder, threads=1) as llm:
        return await llm.embed("a dog")


@pytest.mark.parametrize("place", ["x" * 300, "../1_Pooling", None])
def test_a_module_in_no_folder_of_the_model_is_said(tmp_path: Path, place: object) -> None:
    modules = [{"type": "sentence_transformers.models.Pooling", "path": place}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelFileError, match=r"is not readable JSON|the path of a module is"):
        read_folder_pooling(tmp_path, 48)


@pytest.mark.parametrize(
    "damage",
    [
        {"prompts": ["query"]},
        {"prompts": {}, "default_prompt_name": "query"},
        {"prompts": {"query": "q"}, "default_prompt_name": ["query"]},
    ],
)
def test_damaged_prompts_are_said(tmp_path: Path, damage: dict[str, Any]) -> None:
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(damage))
    with pytest.raises(ModelFileError, match="config_sentence_transformers"):
        read_prompts(tmp_path)


def test_a_model_without_prompts_says_so() -> None:
    with pytest.raises(RequestError, match="this model's files have no prompts"):
        Prompts().find_prompt("query")


@pytest.mark.parametrize(
    ("named", "change"),
    [
        ("Qwen3Model", {}),  # as e5-mistral names MistralModel
        ("Qwen3ForCausalLM", {"tie_word_embeddings": False}),  # as Qwen3-Embedding-8B
    ],
)
def test_a_decoder_without_its_head_makes_vectors(tmp_path: Path, named: str, change: dict[str, Any]) -> None:
    """Its tensors lack "model." in front."""
    folder = write_encoder(tmp_path, EVERY["qwen3"])
    with LLM(folder, threads=1) as llm:
        wanted = llm.embed(TEXTS, pooling="last")
    with_modules(folder, wanted.shape[1], [], pooling="lasttoken")
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("lm_head.weight", None)
    save_file({name.removeprefix("model."): each for name, each in tensors.items()}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": [named]} | change))
    with LLM(folder, threads=1) as llm:
        assert_close(llm.embed(TEXTS), wanted, "exact")
        assert not llm.can_generate
        with pytest.raises(RequestError, match="has no output head and generates no text"):
            llm.generate("a")
    assert any("for embeddings, not for generation" in note for note in from_hf(folder, pre="default").notes)


@pytest.mark.parametrize(
    ("name", "named", "front"),
    [("gptj", "GPTJModel", "transformer."), ("qwen3moe", "Qwen3MoeModel", "model.")],
)
def test_a_head_with_a_bias_and_experts_with_names_of_their_own(
    tmp_path: Path, name: str, named: str, front: str
) -> None:
    folder = write_encoder(tmp_path, EVERY[name])
    with LLM(folder, threads=1) as llm:
        wanted = llm.embed(TEXTS)
    tensors = load_file(folder / "model.safetensors")
    held = {name.removeprefix(front): each for name, each in tensors.items() if not name.startswith("lm_head.")}
    save_file(held, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": [named]}))
    with LLM(folder, threads=1) as llm:
        assert_close(llm.embed(TEXTS), wanted, "exact")


def test_a_decoder_whose_head_is_missing_is_damaged(tmp_path: Path) -> None:
    """Unless its folder says how it makes vectors."""
    folder = write_encoder(tmp_path, EVERY["qwen3"])
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("lm_head.weight", None)
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    with pytest.raises(ModelFileError, match=r"lacks 1 of its .* tensors: lm_head.weight"):
        LLM(folder, threads=1)
