"""The option kv_memory: what is a size, and what a cache of that size holds."""

from pathlib import Path

import pytest

from sporelm import LLM
from sporelm.engine.capacity import MAX_PAGES, choose
from sporelm.errors import MemoryShortage, RequestError
from sporelm.units import size_in_bytes


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        *(("512M", 512_000_000), ("2G", 2_000_000_000), ("1.5GiB", 3 << 29), ("2Gi", 2 << 30), ("64KiB", 65536)),
        *(("1GB", 10**9), ("0.5 MB", 500_000), (" 3k ", 3000), ("4096", 4096), ("7B", 7), ("1TiB", 1 << 40)),
        *((1, 1), (1 << 30, 1 << 30)),
    ],
)
def test_sizes_are_read(text: int | str, nbytes: int) -> None:
    assert size_in_bytes("kv_memory", text) == nbytes


@pytest.mark.parametrize(
    "text", ["", "G", "1.5.2G", "-1G", "2 gigabytes", "1e9", "0", "0.1", "nan", "9" * 15 + "T", "1" * 400, 0, -5, True]
)
def test_an_invalid_size_is_refused(text: int | str) -> None:
    with pytest.raises(RequestError, match=r"kv_memory is .*: give bytes, or a size such as 512M, 2G or 1\.5GiB"):
        size_in_bytes("kv_memory", text)


@pytest.mark.parametrize(
    ("asked", "available", "given", "context", "pages"),
    [
        (None, None, 1_000_000, 8192, 1000),  # more pages than contexts need: earlier texts stay longer
        (None, 10_000, 9_999, 9 * 64, 9),  # cut to what fits; no half of what is available
        (200, 10_000, 4_000, 200, 4),
        (64, None, 1_000, 64, 1),
        (None, None, 1 << 50, 8192, MAX_PAGES),
    ],
)
def test_the_cache_takes_what_it_is_given(
    asked: int | None, available: int | None, given: int, context: int, pages: int
) -> None:
    assert choose(asked, 20_000, 4, 1000, available, given) == (context, pages)


def test_too_little_or_too_much_is_refused_with_what_is_needed() -> None:
    with pytest.raises(
        MemoryShortage,
        match=r"640 positions needs 10\.0 MB .*gives 4\.0 MB: .*or lower the option max_context to at most 256",
    ):
        choose(640, 20_000, 1, 1_000_000, None, 4_000_000)
    with pytest.raises(
        MemoryShortage, match=r"64 positions needs 1\.0 MB .* the option kv_memory gives 0\.5 MB: give more$"
    ):
        choose(None, 20_000, 1, 1_000_000, None, 500_000)
    with pytest.raises(
        MemoryShortage, match=r"the option kv_memory is 3\.0 GB, 2\.0 GB are available beside the weights"
    ):
        choose(None, 20_000, 1, 1000, 2 * 10**9, 3 * 10**9)
    with pytest.raises(RequestError, match="this model allows 1 to 512"):
        choose(513, 512, 1, 1000, None, 10**9)


def test_a_model_is_opened_with_a_cache_of_that_size(story: Path) -> None:
    with LLM(story, backend="reference", kv_memory="300kB") as llm:
        limits, worker = llm.loaded_engine.engine.limits, llm.loaded_engine.worker
        page = sum(worker.device.page_bytes(cache.shape[2:5:2], cache.dtype) for cache in worker.runner.caches)
        assert limits.num_pages == 300_000 // page
        assert llm.max_context == min(llm.config.context_length, limits.num_pages * 64)
    with pytest.raises(RequestError, match="the option kv_memory is 'much'"):
        LLM(story, kv_memory="much")
