"""Tokenizers from Hugging Face folders."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from sporelm.errors import ModelFileError, ModelNotFound
from sporelm.text import ChatTemplate, Detokenizer, load_tokenizer
from sporelm.text.tokenizers.byte_level import byte_alphabet

PROMPT = "Once upon a time"
IDS = [1, 80, 147, 201, 282, 57]


def test_story_model(story: Path) -> None:
    tokenizer = load_tokenizer(story)
    assert tokenizer.encode(PROMPT) == IDS
    assert tokenizer.encode(PROMPT, add_special_tokens=False) == IDS[1:]
    assert tokenizer.decode(IDS) == "<|start_story|> Once upon a time"
    assert tokenizer.decode(IDS, skip_special_tokens=True) == PROMPT
    assert tokenizer.pieces(IDS) == ["<|start_story|>", " ", "On", "ce ", "upon a tim", "e"]
    assert tokenizer.add_bos
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.stop_ids) == (1, 2, frozenset({2}))
    assert tokenizer.chat_template is None


def test_a_large_text_is_encoded_as_it_is_by_the_library_and_beside_other_threads(
    story: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, text = load_tokenizer(story), "Lily ran. <|end_story|> " * 1000
    library = tokenizer._pipeline
    ids = library.encode(text, add_special_tokens=False).ids
    batch_only = SimpleNamespace(encode_batch=library.encode_batch)  # `encode` would hold the GIL
    monkeypatch.setattr(tokenizer, "_pipeline", batch_only)
    assert tokenizer.encode(text, add_special_tokens=False) == ids


def test_story_text_goes_on_with_its_space(story: Path) -> None:
    tokenizer = load_tokenizer(story)
    assert tokenizer.decode([80, 147]) == "On"
    assert tokenizer.decode([80, 147], continues=True) == " On"


def test_special_text_as_plain_text(story: Path) -> None:
    tokenizer = load_tokenizer(story)
    text = "a <|end_story|> b"
    ids = tokenizer.encode(text, parse_special=False)
    assert ids[0] == 1
    assert 2 not in ids
    assert tokenizer.decode(ids[1:]) == text
    assert tokenizer.encode("<|start_story|>" + PROMPT).count(1) == 1


@pytest.fixture
def folder(story: Path, tmp_path: Path) -> Callable[..., Path]:
    """A copy of the story tokenizer with files changed: name -> object, text, or None for none."""

    def make(**files: Any) -> Path:
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"):
            shutil.copyfile(story / name, tmp_path / name)
        for name, value in files.items():
            path = tmp_path / (name if name.endswith("jinja") else name + ".json")
            if value is None:
                path.unlink()
            else:
                path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
        return tmp_path

    return make


def test_files_beside_the_tokenizer(folder: Callable[..., Path]) -> None:
    path = folder(
        tokenizer_config={"bos_token": {"content": "<|start_story|>"}, "eos_token": None, "chat_template": "old"},
        generation_config={"eos_token_id": [7, 9]},
    )
    (path / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}")
    tokenizer = load_tokenizer(path)
    assert tokenizer.eos_id == 7
    assert tokenizer.stop_ids == {7, 9}
    text = ChatTemplate.of(tokenizer).render([{"role": "user", "content": PROMPT}]).text
    assert tokenizer.encode(text).count(1) == 1


def test_nothing_but_the_tokenizer(folder: Callable[..., Path]) -> None:
    path = folder(tokenizer_config=None, special_tokens_map=None, generation_config=None)
    tokenizer = load_tokenizer(path / "tokenizer.json")
    assert tokenizer.encode(PROMPT) == IDS  # the post-processor says so
    assert tokenizer.stop_ids == frozenset()


def test_flags_decide_about_bos_and_eos(folder: Callable[..., Path]) -> None:
    tokenizer = load_tokenizer(folder(tokenizer_config={"add_bos_token": False, "add_eos_token": True}))
    assert tokenizer.encode(PROMPT) == [*IDS[1:], 2]
    assert not tokenizer.add_bos


def test_template_of_a_processor(folder: Callable[..., Path]) -> None:
    """Older folders of models that see have it in a file of its own, which the newest kind of file overrides."""
    path = folder(tokenizer_config={"chat_template": "text"}, chat_template={"chat_template": "pictures"})
    assert load_tokenizer(path).chat_template == "pictures"
    (path / "chat_template.jinja").write_text("newest")
    assert load_tokenizer(path).chat_template == "newest"
    (path / "chat_template.jinja").unlink()
    (path / "chat_template.json").write_text('{"chat_template": 3}')
    assert load_tokenizer(path).chat_template == "text"


def test_named_templates(folder: Callable[..., Path]) -> None:
    both = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    tokenizer = load_tokenizer(folder(tokenizer_config={"chat_template": both}))
    assert ChatTemplate.of(tokenizer).source == tokenizer.chat_template == "plain"
    assert ChatTemplate.of(tokenizer, tools=True).source == "tools"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tokenizer": "{"}, "tokenizer.json (cannot be read|is not JSON)"),
        ({"tokenizer": {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}}, "is not a token"),
        (
            {"tokenizer": {"model": {"type": "BPE", "vocab": {}, "merges": []}}, "tokenizer_config": {}},
            "no tokens|fails",
        ),
        ({"tokenizer_config": "[]"}, "holds a list, not an object"),
        ({"tokenizer_config": "[" * 100_000}, "is not JSON"),
        ({"tokenizer_config": {"eos_token": "<nowhere>"}}, "eos_token '<nowhere>' is not in the vocabulary"),
        ({"tokenizer_config": {"eos_token": 5}}, "eos_token is a int"),
        ({"tokenizer_config": {"add_bos_token": "yes"}}, "add_bos_token is 'yes'"),
        ({"tokenizer_config": {"chat_template": 5}}, "chat_template is a int"),
        ({"tokenizer_config": {"chat_template": [{"name": "x"}]}}, "'x' is not a string"),
        ({"tokenizer_config": {"added_tokens_decoder": []}}, "not an object"),
        ({"tokenizer_config": {"added_tokens_decoder": {"x": {}}}}, "not a table"),
        ({"tokenizer_config": {"added_tokens_decoder": {"9999": {"content": "<new>"}}}}, "token 2048 .* 9999"),
        ({"generation_config": {"eos_token_id": "2"}}, r"eos_token_id is not a token id \(got '2'"),
        ({"generation_config": {"eos_token_id": [-1]}}, r"eos_token_id is not a token id \(got -1"),
    ],
)
def test_damaged_folders(folder: Callable[..., Path], files: dict[str, Any], message: str) -> None:
    path = folder(**files)
    with pytest.raises(ModelFileError, match=message) as caught:
        load_tokenizer(path)
    assert "\n" not in str(caught.value)


def test_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)


def byte_level() -> tokenizers.Tokenizer:
    vocab = {character: byte for byte, character in byte_alphabet().items()} | {"ab": 256}
    made = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[("a", "b")]))
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    made.add_tokens([AddedToken("<think>", special=False), AddedToken("a b", special=False)])
    return made


def metaspace() -> tokenizers.Tokenizer:
    vocab = (
        {"<unk>": 0, "<s>": 1} | {f"<0x{byte:02X}>": byte + 2 for byte in range(256)} | {"▁": 258, "a": 259, "▁a": 260}
    )
    made = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[("▁", "a")], unk_token="<unk>", byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    chain = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(chain)
    made.add_special_tokens(["<s>"])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return made


def word_piece() -> tokenizers.Tokenizer:
    vocab = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "hello": 3, "##ly": 4, "there": 5, ",": 6}
    made = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.add_special_tokens(["[UNK]", "[CLS]", "[SEP]"])
    made.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return made


@pytest.mark.parametrize("make", [byte_level, metaspace, word_piece])
def test_every_kind_of_tokenizer(make: Callable[[], tokenizers.Tokenizer], tmp_path: Path) -> None:
    theirs = make()
    theirs.enable_truncation(4)  # must not be honoured
    theirs.save(str(tmp_path / "tokenizer.json"))
    theirs.no_truncation()
    ours = load_tokenizer(tmp_path)
    for text in ("hello there", "hellothere,  a ab é 😶", "a<think>b", ""):
        ids = theirs.encode(text).ids
        assert ours.encode(text) == ids
        bare = theirs.encode(text, add_special_tokens=False).ids
        assert ours.decode(bare) == theirs.decode(bare, skip_special_tokens=False)
        stream = Detokenizer(ours)
        assert stream.push_all(bare) + stream.flush() == ours.decode(bare)


def test_plain_added_tokens_stay_tokens_and_control_tokens_do_not(tmp_path: Path) -> None:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("<|im_end|><think>a b") == [258, 259, 260]
    plain = tokenizer.encode("<|im_end|><think>a b", parse_special=False)
    assert plain[-2:] == [259, 260]
    assert 258 not in plain
    assert tokenizer.decode(plain) == "<|im_end|><think>a b"
    assert tokenizer.stop_ids == {258}


def test_texts_that_were_read_are_not_kept(story: Path, folder: Callable[..., Path]) -> None:
    spec = json.loads((story / "tokenizer.json").read_text("utf-8"))
    cutting = spec | {"pre_tokenizer": {"type": "WhitespaceSplit"}}
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("the system does not say how much memory a process has")
    for path, count, most in ((story, 3000, 10e6), (folder(tokenizer=cutting), 6000, 30e6)):
        tokenizer = load_tokenizer(path)
        before = int(statm.read_text().split()[1])
        for number in range(count):  # of 8 kB each, were they kept
            tokenizer.encode("abcde" * 48 + str(number), parse_special=bool(number % 2))
        grown = (int(statm.read_text().split()[1]) - before) * os.sysconf("SC_PAGE_SIZE")
        assert grown < most, path
