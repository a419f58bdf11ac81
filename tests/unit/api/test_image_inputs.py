"""Pictures in messages, and the limits that apply before they are decoded and processed."""

from base64 import b64encode
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sporelm.api.conversation_images import encode_png
from sporelm.api.image_inputs import ImageReader
from sporelm.engine import tower_runner
from sporelm.engine.tower_runner import MAX_ROWS
from sporelm.errors import ContextOverflow, RequestError
from sporelm.models.tower_inputs import ImageInput
from sporelm.vision.image_processor import ImageProcessor, ProcessedImage
from vision_folders import draw_picture


class Processor(ImageProcessor):
    """One row for each pixel, and one patch; it counts the pictures that it processes."""

    placeholder = row_token = "<image>"

    def __init__(self, num_patches: int = 1) -> None:
        self.num_patches, self.num_processed = num_patches, 0

    def process(self, pixels: NDArray[np.uint8]) -> ProcessedImage:
        self.num_processed += 1
        rows = self.count_rows(pixels.shape[1], pixels.shape[0])
        patches = np.full((self.num_patches, 4), pixels.mean(), np.float32)
        return ProcessedImage(self.row_token * rows, (ImageInput(patches, ((1, 1, self.num_patches),), rows),))

    def count_rows(self, width: int, height: int) -> int:
        return width * height


def make_reader(processor: Processor | None = None, max_context: int = 100) -> ImageReader:
    tokenizer: Any = SimpleNamespace(control_id=lambda text: 7)

    def check_image(image: ImageInput) -> None:
        runner = SimpleNamespace(tower=SimpleNamespace(added_rows=1))
        tower_runner.TowerRunner.check(runner, image)  # type: ignore[arg-type]

    return ImageReader(processor or Processor(), b"", tokenizer, None, max_context, check_image)


def say(*pictures: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "image", "image": picture} for picture in pictures]}]


def test_no_more_pictures_are_processed_than_the_context_holds() -> None:
    reader = make_reader()
    processor = reader.processor
    assert isinstance(processor, Processor)
    pictures = [encode_png(draw_picture(8, 5, seed)) for seed in range(12)]
    message = r"^image 3 of 12: the prompt is too long \(got 120 tokens of pictures so far, 40 of this one; allowed 100"
    with pytest.raises(ContextOverflow, match=message):
        reader.take_images(say(*pictures))
    assert processor.num_processed == 2
    with pytest.raises(ContextOverflow, match=message):
        reader.take_images(say(*pictures))  # the first two are kept, and count as well
    assert processor.num_processed == 2
    with pytest.raises(ContextOverflow, match=r"^image 1 of 1: "):
        reader.read(draw_picture(20, 20, seed=1))
    assert processor.num_processed == 2


def test_frames_count() -> None:
    reader = make_reader()
    frames = [draw_picture(8, 5, seed) for seed in range(3)]
    with pytest.raises(ContextOverflow, match=r"^image 2 of 2: .*got 120 tokens"):
        reader.take_images(say(frames[:1], frames[:2]))
    reader.max_images = 2
    taken = reader.take_images(say(frames[:2]))
    assert (len(taken.pictures), taken.messages[0]["content"]) == (2, [{"type": "image"}] * 2)
    with pytest.raises(RequestError, match=r"^message 0, part 0: image 1 of 1: too many pictures"):
        reader.take_images(say([frame[:1, :1] for frame in frames]))
    with pytest.raises(RequestError, match=r"^images: too many pictures \(got 3; allowed 2"):
        reader.take_images(say(b"", b"", b""))


def test_a_picture_of_more_patches_than_the_tower_takes_is_refused_with_its_request() -> None:
    reader = make_reader(Processor(MAX_ROWS))  # and the tower adds a row to each tile
    with pytest.raises(RequestError, match=r"^message 0, part 1: image: too many patches"):
        reader.take_images([{"role": "user", "content": [{"type": "text"}, *say(draw_picture(2, 2, 1))[0]["content"]]}])


def test_pictures_of_a_session_file_and_of_others_have_limits_of_their_own() -> None:
    reader = make_reader()
    data = encode_png(draw_picture(8, 5, 1))
    reader.max_seconds = -1.0
    reader.take_images(say(data))  # of this process's user: no limit
    reader.is_isolated = True
    with pytest.raises(RequestError, match=r"^message 0, part 0: image 1 of 1: reading the pictures takes too long"):
        reader.take_images(say(data))


def test_reading_stops_between_pictures() -> None:
    reader = make_reader()
    processor = reader.processor
    assert isinstance(processor, Processor)
    pictures = [draw_picture(3, 2, seed) for seed in range(5)]
    with pytest.raises(RequestError, match=r"^message 0, part 2: image 3 of 5: reading it was cancelled"):
        reader.take_images(say(*pictures), is_cancelled=lambda: processor.num_processed == 2)
    assert processor.num_processed == 2


def test_a_picture_is_kept_for_its_tenant_alone() -> None:
    reader = make_reader()
    data = encode_png(draw_picture(8, 5, 1))
    first = reader.read(data, "a")
    assert reader.read(data, "a") is first
    assert reader.read(bytearray(data), "a") is first
    assert reader.read(data, "b") is not first
    assert reader.read(data) is not first


def test_a_picture_larger_than_the_cache_leaves_the_others_there() -> None:
    processor = Processor(num_patches=2)  # 32 bytes
    reader = make_reader(processor)
    small = [encode_png(draw_picture(8, 5, seed)) for seed in range(3)]
    reader.max_cache_bytes = 64
    first, second = map(reader.read, small[:2])
    processor.num_patches = 5
    large = encode_png(draw_picture(5, 5, 1))
    reader.read(large)
    assert [reader.read(each) for each in small[:2]] == [first, second]
    processor.num_patches = 2
    reader.read(small[2])
    assert reader.read(small[1]) is second
    assert reader.read(small[0]) is not first  # the one used longest ago


def test_parts_as_in_transformers(tmp_path: Path) -> None:
    data = encode_png(draw_picture(3, 2, 1))
    path = tmp_path / "a.png"
    path.write_bytes(data)
    text = b64encode(data).decode()
    keys: list[tuple[str, Any]] = [("path", path), ("path", str(path)), ("url", str(path)), ("base64", text)]
    keys += [(key, f"data:image/png;base64,{text}") for key in ("url", "base64")]
    reader = make_reader()
    expected = reader.read(data)
    for key, value in keys:
        taken = reader.take_images([{"role": "user", "content": [{"type": "image", key: value}]}])
        assert taken.messages[0]["content"] == [{"type": "image"}]
        assert np.array_equal(taken.pictures[0].images[0].patches, expected[0].images[0].patches)
    reader.is_isolated = True
    with pytest.raises(RequestError, match="not an address of a picture"):
        reader.take_images([{"role": "user", "content": [{"type": "image", "path": str(path)}]}])


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({}, r"no key 'image' \(got the keys 'type'\)\. Put the picture under 'image'"),
        ({"source": {"type": "base64", "data": ""}}, r"no key 'image' \(got the keys 'type, source'\)"),
        ({"base64": "?"}, "its base64 is not valid"),
        ({"base64": 3}, "no key 'image'"),
        ({"url": "https://example.com/a.png"}, "addresses of other servers are not opened"),
    ],
)
def test_parts_without_a_picture(part: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=rf"^message 0, part 0: .*{message}") as reason:
        make_reader().take_images([{"role": "user", "content": [{"type": "image", **part}]}])
    assert "server with" not in str(reason.value)
