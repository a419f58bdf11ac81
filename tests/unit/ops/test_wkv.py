"""RWKV's ops: the arguments they reject, and values of their references that are computed by hand."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sporelm import ops
from sporelm.backends.reference import ReferenceBackend
from sporelm.errors import OpError

BACKEND = ReferenceBackend()


def f32(*shape: int, value: float = 0.0) -> Any:
    return BACKEND.tensor(np.full(shape, value, np.float32))


def i32(*numbers: int) -> Any:
    return BACKEND.tensor(np.array(numbers, np.int32))


def ruled(whose: Any = None, **given: Any) -> Any:
    """Four rows of two heads of three channels, five values each."""
    shapes = {"r": (4, 6), "w": (4, 6), "k": (4, 6), "v": (4, 10), "a": (4, 6), "k_k": (6,), "k_a": (6,)}
    shapes |= {"bonus": (2, 3), "state": (2, 6, 5)}
    values = [given[name] if name in given else f32(*shape) for name, shape in shapes.items()]
    return ops.wkv7(*values, *(whose or (i32(0, 4), i32(4), i32(1))))


def faded(whose: Any = None, **given: Any) -> Any:
    shapes = {"r": (4, 6), "w": (4, 6), "k": (4, 6), "v": (4, 10), "bonus": (2, 3), "state": (2, 6, 5)}
    values = [given[name] if name in given else f32(*shape) for name, shape in shapes.items()]
    return ops.wkv6(*values, *(whose or (i32(0, 4), i32(4), i32(1))))


def grouped(whose: Any = None, **given: Any) -> Any:
    """Four rows of two heads of three channels, which share keys, five values each."""
    shapes = {"r": (4, 6), "w": (4, 6), "k": (4, 3), "v": (4, 5), "state": (2, 6, 5)}
    values = [given[name] if name in given else f32(*shape) for name, shape in shapes.items()]
    whole = {"heads": given.get("heads", 2), "key_heads": given.get("key_heads", 1)}
    return ops.gated_linear_attention(*values, *(whose or (i32(0, 4), i32(4), i32(1))), **whole)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "decays": (lambda: ruled(w=f32(4, 5)), "w f32.* must be like r"),
    "rates": (lambda: ruled(a=f32(3, 6)), "a f32.* must be like r"),
    "values": (lambda: ruled(v=f32(4, 6)), "v f32.* must be like what is made"),
    "what is taken off": (lambda: ruled(k_k=f32(5)), "k_k f32.* a number a column"),
    "what is kept": (lambda: ruled(k_a=f32(10)), "k_a f32.* a number a column"),
    "heads": (lambda: ruled(bonus=f32(2, 4)), "must have 4 columns for each of 2 heads"),
    "a state": (lambda: ruled(state=f32(2, 8, 5)), "must have 3 rows for each of 2 heads"),
    "rows without a sequence": (lambda: ruled((i32(0, 3), i32(4), i32(1))), "rise from 0 to the 4 rows"),
    "no such slot": (lambda: ruled((i32(0, 4), i32(4), i32(2))), "between 0 and 1"),
    "decays of 6": (lambda: faded(w=f32(4, 5)), "w f32.* must be like r"),
    "values of 6": (lambda: faded(v=f32(4, 6)), "v f32.* must be like what is made"),
    "a state of 6": (lambda: faded(state=f32(2, 8, 5)), "must have 3 rows for each of 2 heads"),
    "no such slot of 6": (lambda: faded((i32(0, 4), i32(4), i32(2))), "between 0 and 1"),
    "grouped decays": (lambda: grouped(w=f32(4, 3)), "w f32.* must be like r"),
    "grouped keys": (lambda: grouped(k=f32(4, 6)), "k f32.* must be 1 heads of 3 columns"),
    "grouped values": (lambda: grouped(v=f32(3, 5)), "v f32.* must be 1 heads of 5 columns"),
    "groups": (lambda: grouped(heads=3, key_heads=2), "3 heads are not a multiple of 2"),
    "parts of heads": (lambda: grouped(heads=4), "r f32.* must be 4 whole heads"),
    "a grouped state": (lambda: grouped(state=f32(2, 3, 5)), "must have a row for each column of r"),
    "no such grouped slot": (lambda: grouped((i32(0, 4), i32(4), i32(2))), "between 0 and 1"),
    "too few mixes": (
        lambda: ops.mix_rows(f32(2, 3), f32(2, 3), (f32(3),) * 2, (f32(2, 3),)),
        "1 further mixes for 2 vectors",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    make, message = REFUSED[case]
    with pytest.raises(OpError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_key_that_comes_again_takes_the_place_of_what_was_said_of_it() -> None:
    """With rates of one and hardly any decay the state says of a key of length one the last value that went with it."""
    key, never = np.array([[0.6, 0.8, 0.0]] * 2, np.float32), f32(2, 3, value=-90)
    values = np.array([[1.0, 2.0], [5.0, -3.0]], np.float32)
    given = [BACKEND.tensor(key), never, BACKEND.tensor(key), BACKEND.tensor(values), f32(2, 3, value=90)]
    vectors = f32(3, value=2.0), f32(3, value=1.0), f32(1, 3, value=0.5)
    made, alone = ops.wkv7(*given, *vectors, f32(1, 3, 2), i32(0, 2), i32(2), i32(0))
    assert np.allclose(made.numpy(), values, atol=1e-5)
    assert np.allclose(alone.numpy(), values / 2, atol=1e-5)


def test_a_row_is_read_before_its_key_is_added() -> None:
    """RWKV-6: a row's own key counts by the bonus, one row later by one, then by what it fades."""
    one, fading = f32(3, 1, value=1.0), f32(3, 1, value=np.log(np.log(2)))
    values = BACKEND.tensor(np.array([[8.0], [0.0], [0.0]], np.float32))
    made = ops.wkv6(one, fading, one, values, f32(1, 1, value=3.0), f32(1, 1, 1), i32(0, 3), i32(3), i32(0))
    assert np.allclose(made.numpy()[:, 0], [24, 8, 4], atol=1e-5)


def test_a_key_counts_by_what_fades() -> None:
    """QRWKV6: half of the first value is taken up, then half of that is left; two heads share it."""
    one, fading = f32(2, 2, value=1.0), f32(2, 2, value=np.log(np.log(2)))
    values = BACKEND.tensor(np.array([[8.0], [0.0]], np.float32))
    given = one, fading, f32(2, 1, value=1.0), values, f32(1, 2, 1)
    made = ops.gated_linear_attention(*given, i32(0, 2), i32(2), i32(0), heads=2, key_heads=1)
    assert np.allclose(made.numpy(), [[4, 4], [2, 2]], atol=1e-5)


def test_groups_are_normed_each_by_itself() -> None:
    x = np.array([[1.0, 3.0, -10.0, 10.0]], np.float32)
    vectors = (BACKEND.tensor(np.array(each, np.float32)) for each in ([1, 1, 2, 2], [0, 0, 1, 1]))
    made = ops.group_norm(BACKEND.tensor(x), *vectors, group=2, eps=0.0)
    assert np.allclose(made.numpy(), [[-1, 1, -1, 3]])
    vectors = (BACKEND.tensor(np.array(each, np.float32)) for each in ([2, 3], [0, 1]))  # of all groups
    made = ops.group_norm(BACKEND.tensor(x), *vectors, group=2, eps=0.0)
    assert np.allclose(made.numpy(), [[-2, 4, -2, 4]])
