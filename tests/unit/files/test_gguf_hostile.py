"""GGUF files that lie: every claim of a header is refused in one line, and nothing but our errors comes out."""

import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sporelm.errors import ModelError, ModelFileError, UnsupportedModel
from sporelm.files.gguf import GgufWriter, StringArray, open_gguf
from sporelm.files.gguf.header import read_header
from sporelm.quant import F32, Q4_1, Q8_0, quantize_tensor
from sporelm.quant.stored_tensor import StoredTensor

TOP = (1 << 64) - 1


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return pack("<Q", len(raw)) + raw


def entry(key: str | bytes, type_id: int, payload: bytes) -> bytes:
    return text(key) + pack("<I", type_id) + payload


def array(type_id: int, count: int, payload: bytes = b"") -> bytes:
    return pack("<IQ", type_id, count) + payload


def tensor(name: str | bytes, dims: list[int], type_id: int = 0, offset: int = 0, rank: int | None = None) -> bytes:
    return text(name) + pack(f"<I{len(dims)}QIQ", len(dims) if rank is None else rank, *dims, type_id, offset)


def build_file(
    entries: list[bytes] = [],  # noqa: B006 - never changed
    tensors: list[bytes] = [],  # noqa: B006
    data: bytes = b"",
    counts: tuple[int, int] | None = None,
    version: int = 3,
    magic: bytes = b"GGUF",
    alignment: int = 32,
) -> bytes:
    """Return the bytes of a file with the header that it claims."""
    tensor_count, key_count = counts or (len(tensors), len(entries))
    head = magic + pack("<IQQ", version, tensor_count, key_count) + b"".join(entries) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data if data else head


ALIGN = "general.alignment"
LIES: dict[str, tuple[bytes, str]] = {
    "no magic": (build_file(magic=b"GGML"), "starts with b'GGML', not b'GGUF'"),
    "three bytes": (b"GGU", "the magic number needs 4 bytes"),
    "no version": (b"GGUF\x03\0", "the version needs 4 bytes at 4, the file ends at 6"),
    "version 1": (build_file(version=1), "GGUF version 1 is not supported, only 2 and 3"),
    "version 0": (build_file(version=0), "GGUF version 0"),
    "version 4, big-endian": (b"GGUF" + pack(">IQQ", 4, 0, 0), "GGUF version 4"),
    "no counts": (build_file()[:12], "number of tensors needs 8 bytes"),
    "tensor count": (build_file(counts=(TOP, 0)), f"number of tensors is {TOP}, the limit is 262144"),
    "tensor count for the file": (
        build_file(counts=(1000, 0)),
        "number of tensors is 1000, the 8 bytes left cannot hold",
    ),
    "key count": (build_file(counts=(0, 1 << 40)), f"metadata entries is {1 << 40}, the limit is 65536"),
    "key count for the file": (build_file([entry("a", 4, bytes(4))], counts=(0, 9)), "the 17 bytes left cannot hold"),
    "key length": (
        build_file([pack("<Q", TOP) + bytes(20)]),
        f"metadata entry 0 is {TOP} bytes long, the limit is 65535",
    ),
    "key beyond the end": (build_file([pack("<Q", 999) + bytes(20)]), "metadata entry 0 needs 999 bytes"),
    "key not UTF-8": (build_file([entry(b"\xff\xfe", 4, bytes(4))]), "metadata entry 0 at byte 32 is not UTF-8"),
    "key twice": (build_file([entry("k", 4, bytes(4))] * 2), "metadata 'k' appears twice"),
    "value type": (build_file([entry("k", 13, bytes(8))]), "'k' has value type 13, known are 0 to 12"),
    "value cut": (build_file([entry("k", 10, bytes(4))]), "metadata 'k' needs 8 bytes"),
    "bool of 2": (build_file([entry("k", 7, b"\2")]), "is a bool with the value 2"),
    "string length": (build_file([entry("k", 8, pack("<Q", 1 << 50))]), f"'k' is {1 << 50} bytes long, the limit is"),
    "string beyond the end": (build_file([entry("k", 8, pack("<Q", 100))]), "metadata 'k' needs 100 bytes"),
    "string not UTF-8": (build_file([entry("k", 8, text(b"\x80"))]), "metadata 'k' at byte 45 is not UTF-8"),
    "element type": (build_file([entry("k", 9, array(77, 1, b"abcd"))]), "element type 77"),
    "array length": (build_file([entry("k", 9, array(4, TOP))]), f"the length of metadata 'k' is {TOP}, the limit is"),
    "array beyond the end": (build_file([entry("k", 9, array(4, 1000))]), "is 1000, the 0 bytes left cannot hold"),
    "bools of 3": (build_file([entry("k", 9, array(7, 2, b"\1\3"))]), "a bool that is not 0 or 1"),
    "strings count": (build_file([entry("k", 9, array(8, 1 << 60))]), f"is {1 << 60}, the limit is 16777216"),
    "strings beyond the end": (
        build_file([entry("k", 9, array(8, 2, text("ab") + pack("<Q", 1 << 40)))]),
        "'k' needs 1099511627794 bytes at 49",
    ),
    "strings by overflow": (
        build_file([entry("k", 9, array(8, 3, pack("<QQQ", 0, TOP - 15, 0)))]),
        "'k' runs beyond the end of the file",
    ),
    "arrays too deep": (
        build_file([entry("k", 9, array(9, 1, array(9, 1, array(9, 1, array(9, 1, array(4, 0))))))]),
        "nests arrays deeper than 4",
    ),
    "arrays without end": (build_file([entry("k", 9, array(9, 1 << 20))]), "is 1048576, the limit is 65536"),
    "many small arrays": (
        build_file([entry(key, 9, array(9, 40_000, array(4, 0) * 40_000)) for key in "kl"]),
        "more than 65536 arrays inside arrays",
    ),
    "alignment 0": (build_file([entry(ALIGN, 4, pack("<I", 0))]), "general.alignment is 0, it must be a power of two"),
    "alignment 48": (build_file([entry(ALIGN, 4, pack("<I", 48))]), "general.alignment is 48"),
    "alignment 2^31": (build_file([entry(ALIGN, 4, pack("<I", 1 << 31))]), "a power of two up to 1048576"),
    "alignment as text": (build_file([entry(ALIGN, 8, text("32"))]), "is of type str, it must be u32"),
    "tensor name length": (
        build_file(tensors=[pack("<Q", 5000) + bytes(6000)]),
        "is 5000 bytes long, the limit is 1024",
    ),
    "rank": (build_file(tensors=[tensor("t", [1] * 5)]), "tensor 't' has 5 axes, the limit is 4"),
    "rank 2^32": (build_file(tensors=[tensor("t", [1], rank=0xFFFFFFFF)]), "has 4294967295 axes"),
    "axis of 0": (build_file(tensors=[tensor("t", [4, 0])], data=bytes(64)), r"shape [0, 4], an axis of length 0"),
    "overflowing product": (
        build_file(tensors=[tensor("t", [1 << 32, 1 << 32, 1 << 1])], data=bytes(64)),
        "the file at",
    ),
    "product that wraps to 0": (
        build_file(tensors=[tensor("t", [1 << 32] * 4)], data=bytes(64)),
        "truncated or damaged",
    ),
    "broken block": (
        build_file(tensors=[tensor("t", [33], 8)], data=bytes(64)),
        "rows of 33 values, not a multiple of the 32 of a Q8_0 block",
    ),
    "unknown type": (build_file(tensors=[tensor("t", [32], 999)], data=bytes(64)), "tensor type unknown (999)"),
    "retired type": (build_file(tensors=[tensor("t", [32], 4)], data=bytes(64)), "tensor type Q4_2 (4)"),
    "offset beyond the end": (
        build_file(tensors=[tensor("t", [4], offset=1 << 60)], data=bytes(64)),
        "truncated or damaged",
    ),
    "offset near 2^64": (
        build_file(tensors=[tensor("t", [4], offset=TOP - 31)], data=bytes(64)),
        "truncated or damaged",
    ),
    "offset not aligned": (
        build_file(tensors=[tensor("t", [4], offset=8)], data=bytes(64)),
        "offset 8, not a multiple of 32",
    ),
    "name twice": (build_file(tensors=[tensor("t", [4])] * 2, data=bytes(64)), "tensor 't' appears twice"),
    "overlap": (
        build_file(tensors=[tensor("a", [16]), tensor("b", [4], offset=32)], data=bytes(128)),
        "tensors 'a' and 'b' overlap",
    ),
    "same place": (
        build_file(tensors=[tensor("a", [4]), tensor("b", [4])], data=bytes(64)),
        "tensors 'a' and 'b' overlap",
    ),
    "data cut": (
        build_file(tensors=[tensor("a", [16])], data=bytes(63)),
        "tensor 'a' ends at byte 128, the file at 127",
    ),
    "no data at all": (build_file(tensors=[tensor("a", [16])]), "tensor 'a' ends at byte"),
    "name to fool a terminal": (build_file(tensors=[tensor("a\n\x1b[2J", [16] * 5)]), r"'a\n\x1b[2J' has 5 axes"),
}


WELL_FORMED = {"version 1", "version 0", "version 4, big-endian", "unknown type", "retired type"}


@pytest.mark.parametrize("name", LIES)
def test_lies_are_named_in_one_line(tmp_path: Path, name: str) -> None:
    raw, message = LIES[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    with pytest.raises(ModelError) as caught:
        open_gguf(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert str(caught.value).isprintable()  # one line, no control characters
    expected = UnsupportedModel if name in WELL_FORMED else ModelFileError
    assert isinstance(caught.value, expected)


def test_the_builder_makes_good_files_too(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(
        build_file(
            [entry("k", 9, array(8, 2, text("a") + text("b")))],
            [tensor("a", [4]), tensor("b", [8], offset=32)],
            bytes(64),
        )
    )
    model = open_gguf(path)
    assert model.metadata["k"] == ["a", "b"]
    assert model.tensor("b").dequantize().tolist() == [0.0] * 8


@pytest.mark.parametrize("value", [b"\x01\0", 70_000, -1])
def test_invalid_split_counts(tmp_path: Path, value: Any) -> None:
    writer = GgufWriter(tmp_path / "m-00001-of-00002.gguf")
    writer.add("split.count", value if isinstance(value, int) else "2")
    writer.write()
    with pytest.raises(ModelFileError, match=r"split.count must be a whole number from 0 to 65535"):
        open_gguf(writer.path)


def test_a_string_that_is_not_utf8_is_found_when_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(build_file([entry("k", 9, array(8, 2, text("a") + text(b"\xc3\x28")))]))
    words = open_gguf(path).metadata["k"]
    assert words[0] == "a"
    for read in (words.decode_all, partial(words.__getitem__, 1)):
        with pytest.raises(ModelFileError, match="'k': string 1 is not UTF-8"):
            read()


# Mutations of real headers. A mutation is (where, what): positions are shares of the length that is mutated.
POSITION = st.floats(0, 1, exclude_max=True)
NUMBER = st.sampled_from([0, 1, 2, 3, 7, 8, 9, 31, 32, 255, 256, 65_535, 1 << 31, 0xFFFFFFFF, 1 << 32, 1 << 63, TOP])
MUTATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("byte"), POSITION, st.integers(0, 255)),
        st.tuples(st.just("u32"), POSITION, NUMBER),
        st.tuples(st.just("u64"), POSITION, NUMBER | st.integers(0, TOP)),
        st.tuples(st.just("cut"), POSITION, st.just(0)),
        st.tuples(st.just("drop"), POSITION, st.integers(1, 64)),
        st.tuples(st.just("repeat"), POSITION, st.integers(1, 64)),
    ),
    min_size=1,
    max_size=4,
)


def mutated(raw: bytes, mutations: list[tuple[str, float, int]], reach: int) -> bytes:
    """The file with the mutations made within its first `reach` bytes."""
    result = bytearray(raw)
    for kind, share, number in mutations:
        at = int(share * min(reach, len(result)))
        if kind == "byte":
            result[at : at + 1] = bytes([number])
        elif kind == "u32":
            result[at : at + 4] = pack("<I", number & 0xFFFFFFFF)
        elif kind == "u64":
            result[at : at + 8] = pack("<Q", number)
        elif kind == "cut":
            del result[at:]
        elif kind == "drop":
            del result[at : at + number]
        else:
            result[at:at] = result[at : at + number]
    return bytes(result)


def only_our_errors(act: Callable[[], object], allowance: int) -> None:
    """Run `act`: it succeeds or raises one of our errors, in one line, and allocates no more than the allowance."""
    message = ""
    tracemalloc.start()
    try:
        act()
    except ModelError as error:
        message = str(error)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert "\n" not in message
    assert len(message) < 1000
    assert peak < allowance


def use_everything(path: Path) -> None:
    """Open a file and read all that is in it, each part whether or not the others can be read."""
    with open_gguf(path) as model:
        assert repr(model)
        for value in model.metadata.values():
            if isinstance(value, StringArray):
                try:
                    assert len(value.decode_all()) == len(value)
                except ModelFileError:
                    continue
        for name in model.names:
            try:
                assert model.tensor(name).dequantize().shape == model.tensors[name].shape
            except UnsupportedModel:
                continue


@pytest.fixture(scope="module", params=["little", "big"])
def real_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    writer = GgufWriter(tmp_path_factory.mktemp(request.param) / "m.gguf", byte_order=request.param)
    writer.add("general.architecture", "llama")
    writer.add("general.alignment", 32)
    writer.add("llama.rope.freq_base", 1e4)
    writer.add("tokenizer.ggml.add_bos_token", True)
    writer.add("tokenizer.ggml.tokens", [f"token{i}" for i in range(20)])
    writer.add("tokenizer.ggml.token_type", [1] * 20)
    writer.add("nested", [[1, 2], [3]])
    rng = np.random.default_rng(0)
    for number_format, shape in ((F32, (5,)), (Q8_0, (3, 32)), (Q4_1, (2, 64))):
        blocks = quantize_tensor(number_format, rng.standard_normal(shape).astype(np.float32))
        writer.add_tensor(f"blk.0.{number_format.name}", StoredTensor("", number_format, shape, blocks))
    writer.write()
    return writer.path


@given(mutations=MUTATIONS)
@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_mutated_files_give_only_our_errors(real_file: Path, mutations: list[tuple[str, float, int]]) -> None:
    raw = real_file.read_bytes()
    path = real_file.with_name("mutated.gguf")
    path.write_bytes(mutated(raw, mutations, len(raw)))
    only_our_errors(lambda: use_everything(path), 64 * len(raw) + 300_000)


VOCABULARIES = ["ggml-vocab-bert-bge.gguf", "ggml-vocab-llama-spm.gguf", "ggml-vocab-phi-3.gguf"]


@pytest.fixture(scope="module", params=VOCABULARIES)
def vocabulary(request: pytest.FixtureRequest, shared: Path) -> bytes:
    raw: bytes = (shared / "data" / "vocabs" / request.param).read_bytes()
    return raw


@given(mutations=MUTATIONS, reach=st.sampled_from([100, 2000, 1 << 30]))
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_mutated_vocabularies_give_only_our_errors(
    vocabulary: bytes, mutations: list[tuple[str, float, int]], reach: int
) -> None:
    data = memoryview(mutated(vocabulary, mutations, reach))
    only_our_errors(lambda: read_header(data, Path("m.gguf")), 2 * len(vocabulary) + 300_000)


@given(st.binary(max_size=300))
@settings(deadline=None)
def test_noise_gives_only_our_errors(noise: bytes) -> None:
    for head in (b"", b"GGUF\3\0\0\0", b"GGUF\0\0\0\3"):
        only_our_errors(lambda head=head: read_header(memoryview(head + noise), Path("m.gguf")), 300_000)
