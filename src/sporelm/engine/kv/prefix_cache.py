"""The prefix cache: finds the pages of a text, so that a prefix is computed only once.

A full page is known by its hash, over its tokens and the hash of the page before it. Equal hashes therefore mean equal
tokens from position 0 on. The first page's hash begins with the cache salt: requests find only pages that were computed
under their own salt, and cannot tell from response times what others have asked. The hash is BLAKE2b (RFC 7693):
two texts with one hash cannot be constructed.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b

from sporelm.errors import BackendError
from sporelm.ops.paged_attention import PAGE

PageHash = bytes

HASH_BYTES = 16
MAX_REMEMBERED = 1 << 16  # hashes of evicted pages that are remembered; and root hashes

FIRST_SEEN = "first seen"
EVICTED = "evicted"
NEW_SALT = "first request with this salt"
NEW_ADAPTER = "first request with this adapter"


def root_hash(cache_salt: str, adapter: str = "") -> PageHash:
    """Return the parent of first pages; `adapter` is the identity of the LoRA adapter that computes, "" for none."""
    key = blake2b(adapter.encode(), digest_size=HASH_BYTES, person=b"adapter").digest() if adapter else b""
    salt = cache_salt.encode("utf-8", "surrogatepass")
    return blake2b(salt, digest_size=HASH_BYTES, key=key, person=b"prefix").digest()


def hash_page(parent: PageHash, tokens: Sequence[int]) -> PageHash:
    """Return the hash of the page that holds these PAGE tokens after the page `parent`."""
    return blake2b(array("q", tokens).tobytes(), digest_size=HASH_BYTES, key=parent).digest()


class PageHashes:
    """The hashes of the full pages of a growing text. Each call is given the whole text."""

    def __init__(self, cache_salt: str, adapter: str = "") -> None:
        self.cache_salt = cache_salt
        self.adapter = adapter
        self.root = root_hash(cache_salt, adapter)
        self.hashes: list[PageHash] = []

    def extend(self, tokens: Sequence[int]) -> range:
        """Hash the pages that have become full; return their numbers."""
        new_pages = range(len(self.hashes), len(tokens) // PAGE)
        for number in new_pages:
            self.hashes.append(hash_page(self.parent_of(number), tokens[number * PAGE : (number + 1) * PAGE]))
        return new_pages

    def parent_of(self, number: int) -> PageHash:
        """Return the hash of the page before page `number`, or the root."""
        return self.hashes[number - 1] if number else self.root

    def copy(self) -> "PageHashes":
        child = PageHashes.__new__(PageHashes)
        child.cache_salt = self.cache_salt
        child.adapter = self.adapter
        child.root = self.root
        child.hashes = list(self.hashes)
        return child


class PrefixCache:
    """Full pages by hash, and what is remembered of evicted pages."""

    def __init__(self) -> None:
        self.page_of_hash: dict[PageHash, int] = {}
        self.hash_of_page: dict[int, PageHash] = {}
        self.parents: dict[PageHash, PageHash] = {}
        self.children: dict[PageHash, dict[PageHash, array[int]]] = {}  # the tokens of the pages after a hash
        self.evicted: OrderedDict[PageHash, None] = OrderedDict()  # oldest first
        self.known_roots: OrderedDict[PageHash, None] = OrderedDict()  # roots under which something was computed
        self.num_query_tokens = 0  # tokens of prompts that were looked up
        self.num_hit_tokens = 0  # tokens of them that were found
        self.on_remove: Callable[[PageHash], None] | None = None  # called with the hash of each page that is removed

    def insert(self, page: int, page_hash: PageHash, parent: PageHash, tokens: Sequence[int]) -> None:
        """Make a page findable by its content. Does nothing if another page holds the same. Changes the cache."""
        if page_hash in self.page_of_hash:
            return
        self.remove(page)
        self.page_of_hash[page_hash] = page
        self.hash_of_page[page] = page_hash
        self.parents[page_hash] = parent
        self.children.setdefault(parent, {})[page_hash] = array("q", tokens)
        self.evicted.pop(page_hash, None)

    def remove(self, page: int, *, is_evicted: bool = False) -> None:
        """Forget a page, whose content is about to change. Changes the cache."""
        page_hash = self.hash_of_page.pop(page, None)
        if page_hash is None:
            return
        del self.page_of_hash[page_hash]
        if self.on_remove is not None:
            self.on_remove(page_hash)
        parent = self.parents.pop(page_hash)
        siblings = self.children[parent]
        del siblings[page_hash]
        if not siblings:
            del self.children[parent]
        if is_evicted:
            _remember(self.evicted, page_hash)

    def find_pages(self, hashes: Sequence[PageHash]) -> list[int]:
        """Return the pages of the longest cached prefix. Changes nothing."""
        found: list[int] = []
        for page_hash in hashes:
            page = self.page_of_hash.get(page_hash)
            if page is None:
                break
            found.append(page)
        return found

    def explain_miss(self, page_hashes: PageHashes, number: int, page_tokens: Sequence[int]) -> str:
        """Return why page `number` of a text, which holds `page_tokens`, is not cached although those before it are.

        Remembers the root.
        """
        is_new = page_hashes.root not in self.known_roots
        _remember(self.known_roots, page_hashes.root)
        if is_new:
            if page_hashes.adapter:
                return NEW_ADAPTER
            return FIRST_SEEN if page_hashes.root == root_hash("") else NEW_SALT
        if page_hashes.hashes[number] in self.evicted:
            return EVICTED
        siblings = self.children.get(page_hashes.parent_of(number), {}).values()
        num_equal = max((common_prefix_length(page_tokens, sibling) for sibling in siblings), default=0)
        if siblings and (number or num_equal):
            return f"differs at token {number * PAGE + num_equal}"
        return FIRST_SEEN

    def check_integrity(self) -> None:
        """Raise BackendError unless hashes, pages and parents agree. Changes nothing."""
        links = {page_hash: parent for parent, children in self.children.items() for page_hash in children}
        by_hash = {page_hash: page for page, page_hash in self.hash_of_page.items()}
        if self.page_of_hash != by_hash or links != self.parents or links.keys() != self.page_of_hash.keys():
            counts = f"{len(self.page_of_hash)} hashes, {len(by_hash)} pages, {len(links)} links"
            raise BackendError(f"prefix cache: its tables disagree ({counts})")


def common_prefix_length(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the length of the longest common prefix."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(left), len(right)))


def _remember(hashes: OrderedDict[PageHash, None], page_hash: PageHash) -> None:
    """Add a hash as the newest; drop the oldest one beyond MAX_REMEMBERED."""
    hashes[page_hash] = None
    hashes.move_to_end(page_hash)
    if len(hashes) > MAX_REMEMBERED:
        hashes.popitem(last=False)
