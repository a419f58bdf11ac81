"""The queue of images: who goes first, what is kept, and what is forgotten."""

from typing import Any

import numpy as np
import pytest

from sporelm.engine.image_encoder import ImageEncoder
from sporelm.engine.prompt_images import PromptIds, PromptImage, image_row_ids
from sporelm.engine.request import Request
from sporelm.models.tower_inputs import ImageInput

ROWS = 3


class FakeJob:
    """A computation of two pieces."""

    def __init__(self, image: ImageInput) -> None:
        self.image, self.num_pieces, self.rows = image, 0, None

    def advance(self, seconds: float | None) -> None:
        if self.image.layout == (13,):
            raise ValueError("no luck")
        self.num_pieces += 1
        if self.num_pieces == 2:
            self.rows = np.full((ROWS, 4), self.image.layout[0], np.float32)  # type: ignore[assignment]


class FakeRunner:
    def start(self, image: ImageInput) -> FakeJob:
        return FakeJob(image)


def image(number: int, start: int = 0) -> PromptImage:
    patches = np.full((2, 5), number, np.float32)
    given = ImageInput(patches, ((1, 1, 2),), ROWS, (number,))
    return PromptImage(start, given, given.digest, 7)


def request(id: int, tenant: str = "", priority: int = 0, cache_salt: str = "", *images: PromptImage) -> Request:
    made = Request(PromptIds([7] * ROWS + [1], images), tenant=tenant, priority=priority, cache_salt=cache_salt)
    made.id = id
    return made


@pytest.fixture
def encoder() -> ImageEncoder:
    runner: Any = FakeRunner()
    return ImageEncoder(runner, max_bytes=3 * ROWS * 4 * 4)


def finish(encoder: ImageEncoder, *images: PromptImage) -> list[int]:
    """Compute everything; return the numbers of the images in the order in which they are done."""
    done: list[int] = []
    while encoder.has_work:
        encoder.advance(1.0)
        done += [each.image.layout[0] for each in images if encoder.find(each, "") and each.image.layout[0] not in done]
    return done


def test_tenants_take_turns(encoder: ImageEncoder) -> None:
    images = [image(number) for number in range(6)]
    for number in range(5):
        encoder.enqueue(images[number], request(number + 1, "many"))
    encoder.advance(1.0)
    encoder.enqueue(images[5], request(9, "one"))
    assert finish(encoder, *images) == [0, 5, 1, 2, 3, 4]


def test_urgent_images_go_first(encoder: ImageEncoder) -> None:
    images = [image(number) for number in range(3)]
    for number, priority in enumerate((0, 0, -5)):
        encoder.enqueue(images[number], request(number + 1, "", priority))
    assert finish(encoder, *images)[0] == 2


def test_rows_are_kept_for_the_same_salt_alone(encoder: ImageEncoder) -> None:
    encoder.enqueue(image(1), request(1, cache_salt="a"))
    while encoder.has_work:
        encoder.advance(1.0)
    assert encoder.find(image(1), "a")
    assert not encoder.find(image(1), "b")


def test_the_oldest_rows_are_dropped(encoder: ImageEncoder) -> None:
    for number in range(5):
        encoder.enqueue(image(number), request(number + 1))
        while encoder.has_work:
            encoder.advance(1.0)
    assert [encoder.find(image(number), "") for number in range(5)] == [False, False, True, True, True]


def test_computed_images_forget_their_patches(encoder: ImageEncoder) -> None:
    each = image(1)
    encoder.enqueue(each, request(1))
    assert not encoder.find(each, "")
    finish(encoder, each)
    assert each.rows is not None
    assert len(each.image.patches) == 0
    assert each.num_rows == ROWS


def test_images_of_ended_requests_are_dropped(encoder: ImageEncoder) -> None:
    first, second = request(1, "", 0, "", image(1)), request(2, "", 0, "", image(1))
    encoder.enqueue(first.images[0], first)
    encoder.enqueue(second.images[0], second)
    encoder.forget(first)
    assert encoder.has_work
    encoder.forget(second)
    assert not encoder.has_work


def test_a_failure_names_the_requests_that_wait(encoder: ImageEncoder) -> None:
    first, second = request(1), request(2)
    encoder.enqueue(image(13), first)
    encoder.enqueue(image(13), second)
    encoder.enqueue(image(1), request(3))
    failure = encoder.advance(1.0)
    assert failure is not None
    assert list(failure.requests) == [first, second]
    assert str(failure.error) == "no luck"
    assert encoder.has_work


def test_ids_of_rows_follow_from_the_image() -> None:
    ids = image_row_ids(image(1).key, 40)
    assert len(set(ids)) == 40
    assert all(1 << 62 <= each < 1 << 63 for each in ids)
    assert ids == image_row_ids(image(1).key, 40)
    assert not set(ids) & set(image_row_ids(image(2).key, 40))
