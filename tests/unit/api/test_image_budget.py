"""The limits of the pictures of one request."""

from collections.abc import Iterator

import pytest

from sporelm.api import image_budget
from sporelm.api.image_budget import ImageBudget
from sporelm.errors import ContextOverflow, RequestError


def test_rows_are_counted_over_all_pictures_and_frames() -> None:
    budget = ImageBudget(3, 100)
    budget.begin_image()
    budget.add_frame(40)
    budget.begin_image()
    budget.add_frame(40)
    budget.add_frame(20)
    budget.begin_image()
    message = r"^image 3 of 3: the prompt is too long \(got 101 tokens of pictures so far, 1 of this one; allowed 100\)"
    with pytest.raises(ContextOverflow, match=message) as caught:
        budget.add_frame(1)
    assert caught.value.context == 100


def test_frames_count_as_pictures() -> None:
    with pytest.raises(RequestError, match=r"^images: too many pictures \(got 5; allowed 4 in a request"):
        ImageBudget(5, 100, max_images=4)
    budget = ImageBudget(2, 100, max_images=4)
    for _ in range(2):
        budget.begin_image()
        budget.add_frame(1)
        budget.add_frame(1)
    with pytest.raises(RequestError, match=r"^image 2 of 2: too many pictures \(got 5; allowed 4 in a request"):
        budget.add_frame(1)


def test_seconds_are_those_of_all_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    times: Iterator[float] = iter([10.0, 10.5, 11.0, 11.5, 12.5])
    monkeypatch.setattr(image_budget, "monotonic", lambda: next(times))
    budget = ImageBudget(2, 100, max_seconds=2.0)
    budget.begin_image()
    budget.add_frame(1)
    budget.begin_image()
    with pytest.raises(RequestError, match=r"^image 2 of 2: reading the pictures takes too long \(allowed 2 s for all"):
        budget.add_frame(1)


def test_reading_is_cancelled_between_pictures_and_frames() -> None:
    answers = iter([False, False, True])
    budget = ImageBudget(2, 100, is_cancelled=lambda: next(answers))
    budget.begin_image()
    budget.add_frame(1)
    with pytest.raises(RequestError, match=r"^image 2 of 2: reading it was cancelled$"):
        budget.begin_image()
