"""The prefix cache: which requests find a prefix, until when, and the reason of a miss."""

import pytest

from sporelm.engine import Engine, Request
from sporelm.engine.kv.page_allocator import PageAllocator
from sporelm.engine.kv.prefix_cache import MAX_REMEMBERED, PrefixCache, hash_page, root_hash
from sporelm.errors import BackendError
from sporelm.ops.paged_attention import PAGE
from unit.engine.fake import VOCAB, engine, expected
from unit.engine.test_engine import prompt


def ask(made: Engine, ids: list[int], count: int = 2, **options: object) -> Request:
    """A request that has ended, and was answered rightly."""
    request = made.add(Request(ids, max_tokens=count, **options))
    made.run([request])
    assert request.generated == expected(ids, count)
    made.check_integrity()
    return request


def test_a_prompt_seen_before_computes_its_last_page_only():
    made = engine()
    first = ask(made, prompt(200))
    assert (first.cached_tokens, first.cache_miss) == (0, "first seen")
    made.runner.steps.clear()
    again = ask(made, prompt(200))
    assert (again.cached_tokens, again.cache_miss) == (192, None)
    assert made.runner.steps[0].num_tokens == 8
    index = made.kv_cache.prefix_cache
    assert (index.num_query_tokens, index.num_hit_tokens) == (400, 192)


def test_a_prompt_of_whole_pages_computes_the_last_of_them():
    made = engine()
    ask(made, prompt(192))
    again = ask(made, prompt(192))
    assert (again.cached_tokens, again.cache_miss) == (128, None)  # the last token's logits are wanted


def test_an_answer_is_a_prefix_as_well():
    made = engine()
    first = ask(made, prompt(60), 10)
    more = ask(made, [*first.context_ids, 1, 2, 3])
    assert more.cached_tokens == PAGE


def test_requests_that_run_at_the_same_time_share_what_is_ready():
    made = engine(token_budget=200)
    first = made.add(Request(prompt(150), max_tokens=30))
    made.step()
    second = made.add(Request(prompt(150), max_tokens=30))
    made.run([first, second])
    assert second.cached_tokens == 128
    assert first.generated == second.generated == expected(prompt(150), 30)


def test_where_a_prompt_differs_is_said():
    made = engine()
    ids = prompt(200)
    ask(made, ids)
    other = [*ids[:100], (ids[100] + 1) % VOCAB, *ids[101:]]
    found = ask(made, other)
    assert (found.cached_tokens, found.cache_miss) == (64, "differs at token 100")
    early = ask(made, [*ids[:3], (ids[3] + 1) % VOCAB, *ids[4:]])
    assert (early.cached_tokens, early.cache_miss) == (0, "differs at token 3")
    new = ask(made, [(ids[0] + 1) % VOCAB, *ids[1:]])
    assert (new.cached_tokens, new.cache_miss) == (0, "first seen")


def test_another_salt_finds_nothing():
    made = engine()
    ask(made, prompt(200), cache_salt="one")
    other = ask(made, prompt(200), cache_salt="two")
    assert (other.cached_tokens, other.cache_miss) == (0, "first request with this salt")
    assert ask(made, prompt(200), cache_salt="two").cached_tokens == 192
    assert ask(made, prompt(200)).cached_tokens == 0
    sequence = made.sequence("one")
    assert ask(made, prompt(200), sequence=sequence).cached_tokens == 192


def test_pages_are_taken_from_the_longest_unused_and_that_is_said():
    made = engine(num_pages=8)
    for seed in (1, 2):
        ask(made, prompt(150, seed))  # two full pages each
    ask(made, prompt(150, 1))  # used again
    ask(made, prompt(250, 3), 1)  # the last uncached pages, one is uncached again
    ask(made, prompt(150, 4), 1)  # three pages: the pages of prompt 2 go
    kept = ask(made, prompt(150, 1))
    lost = ask(made, prompt(150, 2))
    assert (kept.cached_tokens, lost.cached_tokens, lost.cache_miss) == (128, 0, "evicted")


def test_the_end_of_a_text_goes_before_its_beginning():
    made = engine(num_pages=4)
    ask(made, prompt(230, 1))
    ask(made, prompt(60, 2), 1)  # one page
    ask(made, prompt(60, 3), 10)  # two
    assert ask(made, prompt(230, 1)).cached_tokens in (64, 128)


def test_numbers_that_are_wrong_are_never_found():
    made = engine()
    made.runner.broken = True
    failed = made.add(Request(prompt(150), max_tokens=3))
    made.run([failed])
    assert failed.finish_reason == "error"
    made.runner.broken = False
    assert ask(made, prompt(150)).cached_tokens == 0


def test_a_page_written_again_is_no_longer_found_by_its_old_content():
    made = engine()
    sequence = made.sequence()
    ids = prompt(128)
    ask(made, ids, 1, sequence=sequence)
    ask(made, [*ids[:70], *prompt(58, 9)], 1, sequence=sequence)
    assert ask(made, [*ids, 1]).cached_tokens in (64, 128)
    assert ask(made, [*ids[:70], *prompt(58, 9), 1]).cached_tokens == 128


def test_a_conversation_takes_the_longer_of_its_own_and_of_others():
    made = engine()
    sequence = made.sequence()
    ask(made, prompt(70), 1, sequence=sequence)
    ask(made, prompt(200))
    assert ask(made, prompt(200), sequence=sequence).cached_tokens == 192


def test_a_request_that_was_sent_back_finds_its_pages_again():
    made = engine(num_pages=5, max_batch=2, max_context=256)
    requests = [made.add(Request(prompt(120, seed), max_tokens=60)) for seed in (1, 2)]
    made.run(requests)
    for request in requests:
        assert request.generated == expected(request.prompt, 60)
    made.check_integrity()


def test_keys_tell_texts_apart():
    assert root_hash("") != root_hash("a")
    assert hash_page(root_hash(""), [1, 2]) != hash_page(root_hash(""), [2, 1])
    assert hash_page(root_hash(""), [1, 2]) != hash_page(root_hash("a"), [1, 2])
    assert hash_page(root_hash(""), [1]) != hash_page(root_hash(""), [1 << 8])


def test_the_memory_of_what_was_lost_is_bounded():
    index = PrefixCache()
    for number in range(MAX_REMEMBERED + 5):
        key = number.to_bytes(8, "little")
        index.insert(0, key, b"", [number])
        index.remove(0, is_evicted=True)
    assert len(index.evicted) == MAX_REMEMBERED
    assert not index.children


def test_an_index_that_disagrees_with_its_pages_is_found():
    pool = PageAllocator(2, PrefixCache())
    page = pool.allocate()
    pool.prefix_cache.insert(page, b"key", b"", [1])
    pool.check_integrity([[page]])
    del pool.prefix_cache.parents[b"key"]
    with pytest.raises(BackendError, match="its tables disagree"):
        pool.check_integrity([[page]])
