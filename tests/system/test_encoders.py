"""Encoders in use: vectors, scores, and what they refuse; in Python and on the command line."""

import asyncio
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from close import assert_close
from encoder_files import write_encoder
from families import ENCODERS
from sporelm import LLM, AsyncLLM, SamplingParams
from sporelm.api import RerankResult
from sporelm.cli.main import main
from sporelm.errors import ContextOverflow, MemoryShortage, ModelNotFound, RequestError, SporeError, UnsupportedModel
from sporelm.text import load_tokenizer
from sporelm.tools.hf.from_hf import from_hf
from sporelm.tools.hf.save_folder import save_folder
from sporelm.tools.hf.to_hf import to_hf
from sporelm.tools.output_file import OutputFile, save_models

CASES = {case.name: case for case in ENCODERS}
TEXTS = ["a dog", "some words, and more of them", "the", "one two three four five six seven eight nine ten " * 2]
QUERY, DOCUMENTS = "is it a dog", ["a dog it is", "no", "some other text, of more words"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of encoders, each under its name."""
    root = tmp_path_factory.mktemp("encoders")
    for name in ("bert", "bert-scores", "bert-labels", "xlm-roberta-scores"):
        write_encoder(root / name, CASES[name])
    return root


@pytest.fixture(scope="module")
def reader(folders: Path) -> Iterator[LLM]:
    llm = LLM(folders / "bert", threads=1)
    yield llm
    llm.close()


@pytest.fixture(scope="module")
def ranker(folders: Path) -> Iterator[LLM]:
    llm = LLM(folders / "bert-scores", threads=1)
    yield llm
    llm.close()


def test_texts_that_share_a_step_are_what_they_are_alone(reader: LLM) -> None:
    for pooling in ("mean", "cls", "last"):
        together = reader.embed(TEXTS, pooling=pooling, normalize=False)
        alone = [reader.embed(text, pooling=pooling, normalize=False)[0] for text in TEXTS]
        assert_close(together, np.stack(alone), "exact")
    assert_close(np.linalg.norm(reader.embed(TEXTS), axis=1), np.ones(len(TEXTS)), "f32")


def test_texts_are_read_with_what_the_tokenizer_puts_around_them(reader: LLM) -> None:
    first, second = reader.tokenizer.special.prefix, reader.tokenizer.special.suffix
    ids = [*first, *reader.tokenizer.encode(TEXTS[0], add_special_tokens=False), *second]
    assert reader.tokenizer.pieces([ids[0], ids[-1]]) == ["[CLS]", "[SEP]"]
    assert_close(reader.embed(TEXTS[0]), reader.embed([ids]), "exact")


def test_threads_of_callers_and_of_the_cpu_change_nothing(folders: Path, reader: LLM) -> None:
    wanted = reader.embed(TEXTS)
    with LLM(folders / "bert", threads=2) as two, LLM(folders / "bert", threads=1, eager=True) as eager:
        assert_close(two.embed(TEXTS), wanted, "exact")
        assert_close(eager.embed(TEXTS), wanted, "exact")
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda number: reader.embed(TEXTS), range(8)):
            assert_close(found, wanted, "exact")


def test_many_texts_are_many_steps(reader: LLM) -> None:
    """More texts than a step takes, and more tokens."""
    texts = [[5 + number % 100] * (1 + number % 90) for number in range(200)]
    together = reader.embed(texts)
    assert reader.max_step_seconds > 0  # what a server's patience is measured by
    for number in (0, 89, 127, 128, 199):
        assert_close(together[number], reader.embed(texts[number])[0], "exact")


def test_a_loop_of_events_gets_the_same(folders: Path, reader: LLM, ranker: LLM) -> None:
    async def ask() -> tuple[np.ndarray, list[RerankResult]]:
        async with (
            AsyncLLM(folders / "bert", threads=1) as first,
            AsyncLLM(folders / "bert-scores", threads=1) as second,
        ):
            return await first.embed(TEXTS), await second.rerank(QUERY, DOCUMENTS)

    vectors, found = asyncio.run(ask())
    assert_close(vectors, reader.embed(TEXTS), "exact")
    assert found == ranker.rerank(QUERY, DOCUMENTS)


def test_documents_are_ranked(ranker: LLM) -> None:
    found = ranker.rerank(QUERY, DOCUMENTS)
    assert sorted(each.index for each in found) == [0, 1, 2]
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
    assert all(0 < each.score < 1 for each in found)
    assert ranker.rerank(QUERY, DOCUMENTS, top_n=2) == found[:2]
    plain = ranker.rerank(QUERY, DOCUMENTS, normalize=False)
    assert [each.index for each in plain] == [each.index for each in found]
    assert_close([1 / (1 + np.exp(-each.score)) for each in plain], [each.score for each in found], "f32")
    (alone,) = ranker.rerank(QUERY, DOCUMENTS[1:2])
    assert alone.score == next(each.score for each in found if each.index == 1)
    first, second = ranker.rerank("same", ["text", "text"])
    assert (first.index, second.index) == (0, 1)


def test_a_query_is_cut_into_tokens_once(ranker: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, read = ranker.rerank(QUERY, DOCUMENTS), list[str]()
    encode = ranker.tokenizer.encode
    monkeypatch.setattr(ranker.tokenizer, "encode", lambda text, **how: read.append(text) or encode(text, **how))
    assert ranker.rerank(QUERY, DOCUMENTS) == wanted
    assert read == [QUERY, *DOCUMENTS]


def test_the_second_text_has_a_type_of_its_own(ranker: LLM) -> None:
    """So the two do not change places."""
    (here,), (there,) = ranker.rerank("a dog", ["no cat"]), ranker.rerank("no cat", ["a dog"])
    assert here.score != there.score


@pytest.mark.parametrize(
    ("name", "pair", "second"),
    [
        ("bert", ("[CLS]", "a", "b", "[SEP]", "c", "[SEP]"), 4),
        ("xlm-roberta-scores", ("<s>", "a", "b", "</s>", "</s>", "c", "</s>"), None),
    ],
)
def test_pairs_from_folders_and_from_gguf_files(
    folders: Path, tmp_path: Path, name: str, pair: tuple[str, ...], second: int | None
) -> None:
    file = tmp_path / "m.gguf"
    save_models([OutputFile(file, from_hf(folders / name, pre="default" if "xlm" in name else None).model)])
    for where in (folders / name, file):
        tokenizer = load_tokenizer(where)
        ids, found = tokenizer.encode_pair("a b", "c")
        assert tuple(text.strip() for text in tokenizer.pieces(ids)) == pair
        assert found == second
        if name == "bert":  # special tokens must not be pieces of words
            assert tokenizer.encode_pair("[SEP]", "c")[0].count(ids[-1]) == 2


@pytest.mark.parametrize(
    ("name", "pair", "second"),
    [
        ("bert-scores", ("[CLS]", "a", "b", "[SEP]", "c", "[SEP]"), 4),
        ("distilbert", ("[CLS]", "a", "b", "[SEP]", "c", "[SEP]"), 4),
        ("mpnet-scores", ("<s>", "a", "b", "</s>", "</s>", "c", "</s>"), None),
        ("xlm-roberta-scores", ("<s>", "a", "b", "</s>", "</s>", "c", "</s>"), None),
        ("camembert", ("<s>", "a", "b", "</s>", "</s>", "c", "</s>"), None),
        ("jina-bert-v3-scores", ("<s>", "a", "b", "</s>", "</s>", "c", "</s>"), None),
    ],
)
@pytest.mark.parametrize("names", ["its class", "its kind", "neither"])
def test_pairs_of_folders_without_a_post_processor(
    tmp_path: Path, name: str, pair: tuple[str, ...], second: int | None, names: str
) -> None:
    """transformers' tokenizer classes have one of their own; a tokenizer of no class puts nothing around texts."""
    folder, file = write_encoder(tmp_path / "model", CASES[name]), tmp_path / "m.gguf"
    spec = json.loads((folder / "tokenizer.json").read_text()) | {"post_processor": None}
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    if names == "its class":
        config["tokenizer_class"] = f"{config['tokenizer_class']}Fast"
    elif names == "its kind":
        del config["tokenizer_class"]
    else:
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if names == "neither":
        tokenizer = load_tokenizer(folder)
        ids, found = tokenizer.encode_pair("a b", "c")
        assert tuple(text.strip() for text in tokenizer.pieces(ids)) == ("a", "b", "c")
        assert found is None
        return
    unigram = name.startswith(("xlm", "camembert", "jina"))
    save_models([OutputFile(file, from_hf(folder, pre="default" if unigram else None).model)])
    save_folder(to_hf(file), tmp_path / "back", shard_bytes=1 << 30)
    for where in (folder, file, tmp_path / "back"):
        tokenizer = load_tokenizer(where)
        ids, found = tokenizer.encode_pair("a b", "c")
        assert tuple(text.strip() for text in tokenizer.pieces(ids)) == pair
        assert found == second


@pytest.mark.parametrize("name", ["bert", "distilbert", "mpnet"])
def test_a_vocab_txt_is_the_tokenizer_json_that_it_amounts_to(tmp_path: Path, name: str) -> None:
    """As in folders from before tokenizer.json; GGUF files of them too."""
    folder = write_encoder(tmp_path / "model", CASES[name])
    wanted = load_tokenizer(folder)
    words = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelNotFound, match=r"no vocab\.txt"):
        load_tokenizer(folder)
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    file = tmp_path / "m.gguf"
    save_models([OutputFile(file, from_hf(folder).model)])
    for found in (load_tokenizer(folder), load_tokenizer(file)):
        for text in (*TEXTS, QUERY, *DOCUMENTS, "A Dog, \u00e9t\u00e9?", "[SEP] x", "</s> x"):
            assert found.encode(text) == wanted.encode(text), text
            assert found.encode_pair(text, "c") == wanted.encode_pair(text, "c")
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"tokenizer_class": "BertJapaneseTokenizer"}))
    with pytest.raises(UnsupportedModel, match="tokenizer class is not supported"):
        load_tokenizer(folder)


def test_pairs_of_bges_vocabulary(shared: Path) -> None:
    """As BertTokenizer has them."""
    tokenizer = load_tokenizer(shared / "data" / "vocabs" / "ggml-vocab-bert-bge.gguf")
    ids, second = tokenizer.encode_pair("what is a panda?", "The giant panda")
    assert ids == [101, 2054, 2003, 1037, 25462, 1029, 102, 1996, 5016, 25462, 102]
    assert second == 7


REFUSED = {
    "generate": (lambda llm: llm.generate("a"), "is an encoder, which continues no text; it makes vectors: ask to em"),
    "stream": (lambda llm: next(llm.stream("a", SamplingParams(max_tokens=1))), "is an encoder"),
    "chat": (lambda llm: llm.chat([{"role": "user", "content": "a"}]), "is an encoder"),
    "conversation": (lambda llm: llm.conversation(), "is an encoder"),
    "wake": (lambda llm: llm.wake("nowhere"), "is an encoder"),
    "logits": (lambda llm: llm.logits([5, 6]), "is an encoder"),
    "adapter": (lambda llm: llm.load_adapter("nowhere"), "is an encoder: adapters are for models that generate"),
    "rerank": (lambda llm: llm.rerank("a", ["b"]), "is not a reranker: it has no head that scores texts"),
    "no tokens": (lambda llm: llm.embed([[]]), "has no tokens"),
    "unknown token": (lambda llm: llm.embed([[131]]), "holds token 131: the model knows 0 to 130"),
    "pooling": (lambda llm: llm.embed("a", pooling="max"), "it must be one of mean, last, cls"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_an_encoder_refuses(reader: LLM, what: str) -> None:
    use, message = REFUSED[what]
    with pytest.raises(RequestError, match=message) as caught:
        use(reader)
    assert "\n" not in str(caught.value)


def test_what_a_reranker_refuses(folders: Path, ranker: LLM) -> None:
    with pytest.raises(RequestError, match="it scores texts: ask it to rerank"):
        ranker.generate("a")
    long = r"document 2 of 2 \(index 1\), with the query: the prompt has"
    with pytest.raises(ContextOverflow, match=long) as caught:
        ranker.rerank(QUERY, ["a", "a b c d " * 40])
    assert re.match(long, caught.value.fact)  # what a server's clients are told
    for wrong in ("a text", [], [5], None):
        with pytest.raises(RequestError, match="document"):
            ranker.rerank(QUERY, wrong)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="top_n is 0"):
        ranker.rerank(QUERY, DOCUMENTS, top_n=0)
    with LLM(folders / "bert-labels", threads=1) as llm, pytest.raises(RequestError, match="3 classes: a reranker"):
        llm.rerank(QUERY, DOCUMENTS)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"speculate": "ngram"}, RequestError, "the option speculate: this model is an encoder"),
        ({"kv": "f16"}, RequestError, "the option kv: this model is an encoder"),
        ({"max_context": 97}, RequestError, "the option max_context is 97: this model allows 1 to 96"),
        ({"record": "steps"}, RequestError, "record: an encoder's steps cannot be replayed"),
    ],
)
def test_options_that_an_encoder_has_no_use_for(
    folders: Path, tmp_path: Path, options: dict[str, object], error: type[SporeError], message: str
) -> None:
    if "record" in options:
        options = {"record": tmp_path / "steps"}
    with pytest.raises(error, match=message):
        LLM(folders / "bert", threads=1, **options)  # type: ignore[arg-type]


def test_a_short_context_and_a_trace(folders: Path, tmp_path: Path, reader: LLM) -> None:
    with LLM(folders / "bert", threads=1, max_context=24, trace=tmp_path / "trace.json") as llm:
        assert_close(llm.embed(TEXTS[:2]), reader.embed(TEXTS[:2]), "exact")
        with pytest.raises(ContextOverflow, match="raise the option max_context"):
            llm.embed("a b c d e " * 6)
    assert json.loads((tmp_path / "trace.json").read_text())


def test_a_text_longer_than_a_decoders_step_is_one_step(tmp_path: Path) -> None:
    """And is the same in a step with others."""
    case = CASES["bert"]
    write_encoder(
        tmp_path,
        type(case)("long", case.config | {"max_position_embeddings": 530, "num_hidden_layers": 1}, None, reads=True),
    )
    with LLM(tmp_path, threads=1) as llm:
        ids = np.random.RandomState(1).randint(5, 131, 530).tolist()
        found = llm.embed([ids[:300], ids, ids[300:310]])
        assert_close(found[1], llm.embed([ids])[0], "exact")
        assert np.isfinite(found).all()
    with LLM(tmp_path, threads=1, backend="reference") as llm:
        assert_close(llm.embed([ids])[0], found[1], "logits")


def modules(folder: Path, *kinds: str, **pooling: object) -> Path:
    """Write the files that sentence-transformers writes beside a model."""
    listed = [{"idx": n, "name": str(n), "path": f"{n}_{kind}", "type": f"x.{kind}"} for n, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_lasttoken": True, "pooling_mode_cls_token": False}, "last"),
        ({"pooling_mode": "lasttoken"}, "last"),
    ],
)
def test_pooling_is_as_the_files_say(tmp_path: Path, reader: LLM, pooling: dict[str, object], expected: str) -> None:
    folder = modules(write_encoder(tmp_path, CASES["bert"]), "Transformer", "Pooling", "Normalize", **pooling)
    file = tmp_path / "m.gguf"
    save_models([OutputFile(file, from_hf(folder).model)])
    for path in (folder, file):
        with LLM(path, threads=1) as llm:
            assert llm.config.pooling == expected
            assert_close(llm.embed(TEXTS), reader.embed(TEXTS, pooling=expected), "f32")


def test_pooling_that_is_not_computed_is_refused(tmp_path: Path) -> None:
    folder = modules(write_encoder(tmp_path, CASES["bert"]), "Transformer", "Pooling", pooling_mode_max_tokens=True)
    with pytest.raises(UnsupportedModel, match="pooling by pooling_mode_max_tokens is not supported"):
        LLM(folder, threads=1)
    for kinds, message in ((["Router"], "the module 'Router' is not"), (["Transformer", "Dense"], "Dense after Trans")):
        (folder / "modules.json").write_text(json.dumps([{"type": f"x.{kind}", "path": "2_Dense"} for kind in kinds]))
        with pytest.raises(UnsupportedModel, match=message):
            LLM(folder, threads=1)


HEADED = {  # a class with a head -> the case of the model alone, what its tensors have in front, and its head
    "BertForMaskedLM": ("bert", "bert.", ("cls.predictions.bias", "cls.predictions.transform.dense.weight")),
    "BertForPreTraining": ("bert", "bert.", ("cls.seq_relationship.weight", "bert.pooler.dense.bias")),
    "RobertaForMaskedLM": ("roberta", "roberta.", ("lm_head.dense.weight", "lm_head.bias")),
    "XLMRobertaForMaskedLM": ("xlm-roberta", "roberta.", ("lm_head.layer_norm.bias",)),
    "CamembertForMaskedLM": ("camembert", "roberta.", ("lm_head.decoder.bias",)),
    "DistilBertForMaskedLM": ("distilbert", "distilbert.", ("vocab_transform.weight", "vocab_projector.bias")),
    "MPNetForMaskedLM": ("mpnet", "mpnet.", ("lm_head.dense.weight", "lm_head.bias")),
    "EuroBertForMaskedLM": ("eurobert", "model.", ("lm_head.weight",)),
    "NewModel": ("gte", "new.", ("new.pooler.dense.bias",)),
    "NewForTokenClassification": ("gte", "new.", ("classifier.weight", "classifier.bias")),
    "ModernBertForMaskedLM": ("modern-bert", "model.", ("head.dense.weight", "head.norm.weight", "decoder.bias")),
    "NomicBertForMaskedLM": ("nomic-bert", "nomic_bert.", ("cls.predictions.bias",)),
}


def tensorflow(found: re.Match[str]) -> str:
    return f"LayerNorm.{'gamma' if found[1] == 'weight' else 'beta'}"


@pytest.mark.parametrize("name", HEADED)
def test_a_folder_of_a_class_with_a_head_that_fills_gaps(tmp_path: Path, name: str) -> None:
    """Whether the model's tensors have the class's prefix, or are those of the model alone, as sentence-transformers
    saves them; norms may be spelled as TensorFlow's."""
    case, front, heads = HEADED[name]
    ids = [list(range(5, 40))]
    folder = write_encoder(tmp_path, CASES[case])
    with LLM(folder, threads=1) as llm:
        wanted = llm.embed(ids)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": [name]}))
    plain = load_file(folder / "model.safetensors")
    for names in (
        {each: each for each in plain},
        {each: front + each for each in plain},
        {each: front + re.sub("LayerNorm.(weight|bias)$", tensorflow, each) for each in plain},
    ):
        tensors = {names[each]: values for each, values in plain.items()}
        tensors |= {each: np.ones((3,), np.float32) for each in heads}
        save_file(tensors, folder / "model.safetensors")
        with LLM(folder, threads=1) as llm:
            assert_close(llm.embed(ids), wanted, "exact")
            said = any(f"the pretraining head of {name} is not read" in note for note in llm.notes)
            assert said is name.endswith(("ForMaskedLM", "ForPreTraining"))


def test_what_rows_make_of_distances_has_its_place_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_encoder(tmp_path, CASES["deberta2-scores"])
    with LLM(folder, threads=1) as llm:
        ranked, room = llm.rerank(QUERY, DOCUMENTS), llm.model_bytes + 200_000
    monkeypatch.setattr("sporelm.api.encoder_loading.available_on", lambda backend: room)
    each = 4 * (12 * 48 + 3 * 88 + 2 * 6 * 2 * 16)  # of a token, in a step: twice 32 columns for each of six heads
    with LLM(folder, threads=1) as llm:
        assert llm.max_context == 200_000 // each
        assert llm.rerank(QUERY, DOCUMENTS) == ranked


def test_a_text_that_does_not_fit_into_memory_is_said(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LLM(folders / "bert", threads=1) as llm:
        room = llm.model_bytes + 100_000
    monkeypatch.setattr("sporelm.api.encoder_loading.available_on", lambda backend: room)
    with LLM(folders / "bert", threads=1) as llm:
        assert 1 <= llm.max_context < 96
    with pytest.raises(MemoryShortage, match="lower the option max_context"):
        LLM(folders / "bert", threads=1, max_context=96)


def test_the_commands(folders: Path, tmp_path: Path, ranker: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(["", *DOCUMENTS[1:], ""]))
    assert main(["embed", str(folders / "bert"), "a dog", "-f", str(lines), "--threads", "1", "--json"]) == 0
    vectors = np.array(json.loads(capsys.readouterr().out)["vectors"])
    assert main(["embed", str(folders / "bert"), "a dog", "--threads", "1"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert_close([float(value) for value in line.split()], vectors[0], "f32")
    assert vectors.shape == (3, 48)
    given = ["rerank", str(folders / "bert-scores"), QUERY, DOCUMENTS[0], "-f", str(lines), "--threads", "1"]
    assert main([*given, "--json", "--top-n", "2"]) == 0
    found = json.loads(capsys.readouterr().out)["results"]
    expected = ranker.rerank(QUERY, DOCUMENTS, top_n=2)
    assert [(each["index"], each["score"]) for each in found] == [(each.index, each.score) for each in expected]
    assert main(given) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith(DOCUMENTS[expected[0].index])
    assert main(["embed", str(folders / "bert"), "--threads", "1"]) == 2
    assert main(["embed", str(folders / "bert"), "-f", str(tmp_path / "none"), "--threads", "1"]) == 1
    assert main([*given, "--top-n", "0"]) == 2
    assert main(["run", str(folders / "bert"), "-p", "a", "--threads", "1"]) == 1
    assert "is an encoder, which continues no text" in capsys.readouterr().err
