"""Which page holds the keys and values of which text, so that a prefix computed once is found again.

A full page is known by its key: a hash of its tokens and of the key of the page before it, so that equal keys mean
equal tokens from position 0 on. The first page's key begins with the salt: requests find only what was computed under
their own salt, and so cannot tell from the time an answer takes what others have asked. The hash is BLAKE2b (RFC 7693):
texts that share a key without being equal cannot be constructed.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b

from sporelm.errors import BackendError
from sporelm.ops.attention import PAGE

Key = bytes

KEY_BYTES = 16
MOST_EVICTED = 1 << 16  # keys remembered after their pages were given to others; and salts

FIRST_SEEN = "first seen"
EVICTED = "evicted"
NEW_SALT = "first request with this salt"
NEW_ADAPTER = "first request with this adapter"


def root(salt: str, adapter: str = "") -> Key:
    """What the first page's key is chained to. `adapter`: what the adapter that computes is known by, "" for none."""
    own = blake2b(adapter.encode(), digest_size=KEY_BYTES, person=b"adapter").digest() if adapter else b""
    return blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES, key=own, person=b"prefix").digest()


def chained(parent: Key, tokens: Sequence[int]) -> Key:
    """The key of the page that holds these PAGE tokens after those of `parent`."""
    return blake2b(array("q", tokens).tobytes(), digest_size=KEY_BYTES, key=parent).digest()


class Chain:
    """The keys of the full pages of a text that grows. It is given the whole text each time."""

    def __init__(self, salt: str, adapter: str = "") -> None:
        self.salt, self.adapter = salt, adapter
        self.root = root(salt, adapter)
        self.keys: list[Key] = []

    def extend(self, tokens: Sequence[int]) -> range:
        """Add the keys of the pages that have become full; the numbers of these pages."""
        new = range(len(self.keys), len(tokens) // PAGE)
        for number in new:
            self.keys.append(chained(self.before(number), tokens[number * PAGE : (number + 1) * PAGE]))
        return new

    def before(self, number: int) -> Key:
        """What the key of this page is chained to."""
        return self.keys[number - 1] if number else self.root

    def copy(self) -> "Chain":
        twin = Chain.__new__(Chain)
        twin.salt, twin.adapter = self.salt, self.adapter
        twin.root, twin.keys = self.root, list(self.keys)
        return twin


class PrefixIndex:
    """Full pages by key, and what is known of those that are no longer there."""

    def __init__(self) -> None:
        self.pages: dict[Key, int] = {}
        self.keys: dict[int, Key] = {}  # by page
        self.parents: dict[Key, Key] = {}
        self.children: dict[Key, dict[Key, array[int]]] = {}  # the tokens of the pages after a key
        self.evicted: OrderedDict[Key, None] = OrderedDict()  # the longest ago first
        self.salts: OrderedDict[Key, None] = OrderedDict()  # roots under which something was computed
        self.queries = self.hits = 0  # tokens of prompts looked up, and found
        self.forgotten: Callable[[Key], None] | None = None  # is told of each key whose page is not known any more

    def add(self, page: int, key: Key, parent: Key, tokens: Sequence[int]) -> None:
        """Say what a page holds. Does nothing if another page is known to hold the same. Changes the index."""
        if key in self.pages:
            return
        self.forget(page)
        self.pages[key], self.keys[page], self.parents[key] = page, key, parent
        self.children.setdefault(parent, {})[key] = array("q", tokens)
        self.evicted.pop(key, None)

    def forget(self, page: int, *, evicted: bool = False) -> None:
        """The page is about to hold something else. Changes the index."""
        key = self.keys.pop(page, None)
        if key is None:
            return
        del self.pages[key]
        if self.forgotten is not None:
            self.forgotten(key)
        parent = self.parents.pop(key)
        siblings = self.children[parent]
        del siblings[key]
        if not siblings:
            del self.children[parent]
        if evicted:
            remember(self.evicted, key)

    def find(self, keys: Sequence[Key]) -> list[int]:
        """The pages of the longest known beginning of a chain. Changes nothing."""
        found: list[int] = []
        for key in keys:
            page = self.pages.get(key)
            if page is None:
                break
            found.append(page)
        return found

    def why_missed(self, chain: Chain, number: int, tokens: Sequence[int]) -> str:
        """Why full page `number` of a text, whose pages before are known, is not. Remembers the salt."""
        is_new = chain.root not in self.salts
        remember(self.salts, chain.root)
        if is_new:
            if chain.adapter:
                return NEW_ADAPTER
            return FIRST_SEEN if chain.root == root("") else NEW_SALT
        if chain.keys[number] in self.evicted:
            return EVICTED
        wanted = tokens[number * PAGE : (number + 1) * PAGE]
        known = self.children.get(chain.before(number), {}).values()
        same = max((common(wanted, other) for other in known), default=0)
        return f"differs at token {number * PAGE + same}" if known and (number or same) else FIRST_SEEN

    def check_integrity(self) -> None:
        """Raise BackendError unless keys, pages and chains agree. Changes nothing."""
        kin = {key: parent for parent, children in self.children.items() for key in children}
        by_page = {key: page for page, key in self.keys.items()}
        if self.pages != by_page or kin != self.parents or kin.keys() != self.pages.keys():
            counted = f"{len(self.pages)} keys, {len(by_page)} pages, {len(kin)} links"
            raise BackendError(f"the index of prefixes does not agree with itself: {counted}")


def common(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common beginning."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(left), len(right)))


def remember(keys: OrderedDict[Key, None], key: Key) -> None:
    """Put a key at the end, and let the oldest go where there are too many."""
    keys[key] = None
    keys.move_to_end(key)
    if len(keys) > MOST_EVICTED:
        keys.popitem(last=False)
