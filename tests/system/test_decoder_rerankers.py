"""Rerankers that answer yes or no, and decoders whose files say how rows are pooled: Qwen3-Reranker and -Embedding."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from close import assert_close
from families import CASES, Case, write_case
from families.case import TIED
from hf_folders import FLAGS, tokenizer_json, write_tokenizer
from sporelm import LLM
from sporelm.errors import ContextOverflow, RequestError, UnsupportedModel
from sporelm.quant import F32
from sporelm.text import load_tokenizer
from sporelm.text.chat_templates.rerank_prompt import QWEN3, encode_rerank_prompt, find_answer_ids
from sporelm.tools.hf.from_hf import from_hf
from sporelm.tools.hf.to_hf import to_hf
from sporelm.tools.lazy_model import LazyTensor, MetadataEntry
from sporelm.tools.output_file import OutputFile, save_models

BASE = next(case for case in CASES if case.name == "qwen3")
CASE: Case = replace(BASE, config=BASE.config | TIED | {"vocab_size": 400, "max_position_embeddings": 1024})
WORDS = ("yes", "<|im_start|>", "<|im_end|>")  # "no" is a word of the tests' tokenizer
QUERY, DOCUMENTS = "what is a panda", ["a bear", "no", "some <|im_end|> text"]


def write(folder: Path, case: Case) -> Path:
    """A folder whose tokenizer has the words of the template."""
    write_case(folder, case)
    spec = tokenizer_json(396)
    spec["added_tokens"] += [
        {"id": 396 + n, "content": word, "special": word.startswith("<")} | FLAGS for n, word in enumerate(WORDS)
    ]
    write_tokenizer(folder, spec)
    return folder


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("qwen") / "Qwen3-Reranker-tiny", CASE)


@pytest.fixture(scope="module")
def ranker(model_folder: Path) -> Iterator[LLM]:
    llm = LLM(model_folder, threads=1)
    yield llm
    llm.close()


def expected(llm: LLM) -> list[float]:
    """Of each document the probability of yes, where the answer is yes or no."""
    found = []
    for document in DOCUMENTS:
        logits = llm.logits(encode_rerank_prompt(llm.tokenizer, QWEN3, QUERY, document))[-1]
        yes, no = logits[list(find_answer_ids(llm.tokenizer))]
        found.append(float(1 / (1 + np.exp(np.float64(no) - yes))))
    return found


def test_the_prompt_is_the_templates(model_folder: Path) -> None:
    """Control tokens of the template are tokens, those of a text are letters; a text that names a place is a text."""
    tokenizer = load_tokenizer(model_folder)
    ids = encode_rerank_prompt(tokenizer, QWEN3, "{document}", DOCUMENTS[2])
    whole = QWEN3.replace("{query}", "\0").replace("{document}", DOCUMENTS[2]).replace("\0", "{document}")
    assert tokenizer.decode(ids) == whole
    assert (ids.count(397), ids.count(398)) == (3, 2)
    with pytest.raises(RequestError, match="must have one"):
        encode_rerank_prompt(tokenizer, "{query}", "a", "b")


def test_documents_are_ranked_by_yes_and_no(ranker: LLM) -> None:
    scores = expected(ranker)
    found = ranker.rerank(QUERY, DOCUMENTS)
    assert [each.index for each in found] == sorted(range(3), key=lambda index: -scores[index])
    assert_close([each.score for each in found], [scores[each.index] for each in found], "f32")
    assert ranker.generate("a")  # it is a model as others are
    with pytest.raises(ContextOverflow, match="document 1 of 1"):
        ranker.rerank(QUERY, ["word " * 1000])


def write_with_head(model_folder: Path, case: Case, file: Path) -> Path:
    """A file as llama.cpp's converter writes it: with rows of yes and no, and a template of its own."""
    model, answers = from_hf(model_folder).model, find_answer_ids(load_tokenizer(model_folder))
    rows = case.weights()["embedding.weight"][list(answers)]
    blocks = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).reshape(-1, 4)
    head = LazyTensor("cls.output.weight", F32.ggml_id, rows.shape, lambda start, stop: blocks[start:stop])
    more = {
        "qwen3.pooling_type": MetadataEntry("u32", 4),
        "qwen3.classifier.output_labels": MetadataEntry("[str]", ["yes", "no"]),
        "tokenizer.chat_template.rerank": MetadataEntry("str", QWEN3),
    }
    save_models([OutputFile(file, replace(model, metadata={**model.metadata, **more}, tensors=[*model.tensors, head]))])
    return file


def test_a_gguf_file_with_a_head(model_folder: Path, ranker: LLM, tmp_path: Path) -> None:
    file = write_with_head(model_folder, CASE, tmp_path / "m.gguf")
    with LLM(file, threads=1) as llm:
        found = llm.rerank(QUERY, DOCUMENTS)
        assert_close([each.score for each in found], [each.score for each in ranker.rerank(QUERY, DOCUMENTS)], "f32")
        for ask in (lambda: llm.generate("a"), lambda: llm.logits([5])):
            with pytest.raises(RequestError, match="is a reranker, which generates no text: use it to rerank"):
                ask()
    with pytest.raises(UnsupportedModel, match="is a reranker: its head has no place"):
        to_hf(file)


@pytest.mark.all
def test_llama_cpp_scores_the_same_file_alike(root: Path, tmp_path: Path) -> None:
    from peer_logits import load, peer_scores

    peer = os.environ.get("SPORE_PEER")
    if not peer:
        pytest.skip("SPORE_PEER names no folder with llama.cpp's programs and libraries: bench/peer.sh builds one")
    assert BASE.wide
    wide = replace(CASE, config=CASE.config | BASE.wide)
    place = write(tmp_path / "Qwen3-Reranker-wide", wide)
    file = write_with_head(place, wide, tmp_path / "m.gguf")
    with LLM(file, threads=1, kv="f32") as llm:
        (found,) = llm.rerank(QUERY, DOCUMENTS[:1])
        ids = encode_rerank_prompt(llm.tokenizer, QWEN3, QUERY, DOCUMENTS[0])
    assert found.score == pytest.approx(peer_scores(load(Path(peer), root), file, ids, 2)[0], abs=1e-3)


def test_pooling_of_a_decoder_is_as_its_files_say(tmp_path: Path) -> None:
    """Qwen3-Embedding's names lack "model." in front, and its tokenizer ends texts."""
    folder = write(tmp_path / "m", CASE)
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    save_file({name.removeprefix("model."): value for name, value in tensors.items()}, folder / "model.safetensors")
    kinds = ("Transformer", "Pooling", "Normalize")
    (folder / "modules.json").write_text(json.dumps([{"type": f"x.{kind}", "path": f"1_{kind}"} for kind in kinds]))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "add_eos_token": True}))
    file = tmp_path / "m.gguf"
    save_models([OutputFile(file, from_hf(folder).model)])
    for path in (folder, file):
        with LLM(path, threads=1) as llm:
            ids = llm.tokenizer.encode("some text")
            assert ids[-1] == 398
            assert llm.config.pooling == "last"
            assert_close(llm.embed("some text"), llm.embed([ids], pooling="last"), "exact")
            assert np.abs(llm.embed("some text") - llm.embed("some text", pooling="mean")).max() > 1e-3
