"""Rotary embedding, alone and fused with the store of keys and values. An item is one head of one token."""

from dataclasses import dataclass
from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32, i32, i64, vec
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.kernels.kv_pages import KvPages


@dataclass(frozen=True)
class RotaryShape:
    """The specialization of a rotary kernel."""

    head_dim: int
    rotary: int
    style: str
    streams: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        streams = "" if self.streams is None else "_" + "".join(map(str, self.streams))
        return f"{self.rotary}_{self.style}{streams}"

    @property
    def fields(self) -> str:
        return "positions:p table:p table_stride:i" + " positions_stride:i" * (self.streams is not None)

    def angles(self, k: Builder, f: Any, token: Val) -> dict[int, Val]:
        """Return the addresses of the angles of a token's position, or of each of its positions that is used."""
        if self.streams is None:
            places = {0: k.at(f.positions, token * 4)}
        else:
            places = {stream: k.at(f.positions, token * f.positions_stride + 4 * stream) for stream in {*self.streams}}
        return {
            stream: k.at(f.table, k.load(i32, place).sext(i64) * f.table_stride) for stream, place in places.items()
        }

    def rotate(self, k: Builder, x: Val, out: Val, angles: dict[int, Val]) -> None:
        """Rotate one head from `x` to `out`, which may be the same."""
        parts = 2 if self.style == "halves" else 1
        count = self.rotary // 2 // parts  # pairs of a part
        whole = count // k.lanes * k.lanes
        vectors = [(at, k.lanes) for at in range(0, whole, k.lanes)] + [(at, 1) for at in range(whole, count)]
        pair = _rotate_adjacent if self.style == "adjacent" else _rotate_half
        for part in range(parts):
            here, there = (k.at(base, 8 * count * part) for base in (x, out))
            for at, lanes in vectors:
                cosine, sine = (self._angle(k, angles, side, part * count + at, lanes) for side in range(2))
                pair(k, here, there, (cosine, sine), at, count)
        for at in range(self.rotary, self.head_dim):
            k.store(k.load(f32, x, 4 * at), out, 4 * at)

    def _angle(self, k: Builder, angles: dict[int, Val], side: int, first: int, lanes: int) -> Val:
        """Load cosines (side 0) or sines of the pairs from `first` on, each from its own stream."""
        kind, place = vec(f32, lanes) if lanes > 1 else f32, 4 * (first + side * self.rotary // 2)
        wanted = [0] * lanes if self.streams is None else self.streams[first : first + lanes]
        found = k.load(kind, angles[wanted[0]], place)
        for stream in sorted({*wanted} - {wanted[0]}):
            taken = [lane + lanes * (wanted[lane] == stream) for lane in range(lanes)]
            found = k.shuffle(found, k.load(kind, angles[stream], place), taken)
        return found


def rope(target: Any, turn: RotaryShape) -> Kernel:
    """Rotate every head of every row."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as item:
            token, head = item // f.heads, item % f.heads
            at = token * f.stride + head * (4 * turn.head_dim)
            turn.rotate(k, k.at(f.x, at), k.at(f.out, at), turn.angles(k, f, token))

    text = f"x:p out:p stride:i heads:i {turn.fields}"
    return Kernel(f"rope_{turn.head_dim}_{turn.name}", parse_fields(text), body)


def rope_store(target: Any, pages: KvPages, turn: RotaryShape) -> Kernel:
    """Rotate heads of q to `out`; rotate the following heads of k and store them with their v."""
    head_dim = pages.head_dim

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as item:
            every = f.heads + f.kv_heads
            token, head = item // every, item % every
            angles = turn.angles(k, f, token)
            is_query = head < f.heads
            kv_head = head - f.heads
            k_at = token * f.kv_stride + kv_head * (4 * head_dim)
            q_at = token * f.stride + head * (4 * head_dim)
            source = k.select(is_query, k.at(f.x, q_at), k.at(f.keys, k_at))
            turn.rotate(k, source, k.select(is_query, k.at(f.out, q_at), scratch), angles)
            with k.when(head >= f.heads):
                slot = k.load(i32, f.slots, token * 4).sext(i64)
                pages.store(k, f.cache, f.page_bytes, slot, kv_head, scratch, k.at(f.values, k_at))

    text = f"x:p out:p stride:i heads:i {turn.fields} keys:p values:p kv_stride:i kv_heads:i"
    text += " cache:p page_bytes:i slots:p"
    name = f"rope_store_{pages.name}_{turn.name}"
    return Kernel(name, parse_fields(text), body, scratch=4 * head_dim + 256)


def _rotate_pair(left: Val, right: Val, angle: tuple[Val, Val]) -> tuple[Val, Val]:
    cosine, sine = angle
    return left * cosine - right * sine, right * cosine + left * sine


def _rotate_half(k: Builder, x: Val, out: Val, angle: tuple[Val, Val], at: int, count: int) -> None:
    kind = angle[0].type
    left, right = _rotate_pair(k.load(kind, x, 4 * at), k.load(kind, x, 4 * (at + count)), angle)
    k.store(left, out, 4 * at)
    k.store(right, out, 4 * (at + count))


def _rotate_adjacent(k: Builder, x: Val, out: Val, angle: tuple[Val, Val], at: int, count: int) -> None:
    kind = angle[0].type
    if kind is f32:
        left, right = _rotate_pair(k.load(f32, x, 8 * at), k.load(f32, x, 8 * at + 4), angle)
        k.store(left, out, 8 * at)
        k.store(right, out, 8 * at + 4)
        return
    lanes = kind.count
    first, second = k.load(kind, x, 8 * at), k.load(kind, x, 8 * at + 4 * lanes)
    even, odd = list(range(0, 2 * lanes, 2)), list(range(1, 2 * lanes, 2))
    left, right = _rotate_pair(k.shuffle(first, second, even), k.shuffle(first, second, odd), angle)
    order = [lane + lanes * side for lane in range(lanes) for side in range(2)]
    k.store(k.shuffle(left, right, order[:lanes]), out, 8 * at)
    k.store(k.shuffle(left, right, order[lanes:]), out, 8 * at + 4 * lanes)
