"""Pictures in prompts: from messages to ids of image rows, and to the inputs of the vision tower."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.api.image_budget import MAX_IMAGES, MAX_SECONDS, ImageBudget, IsCancelled
from sporelm.engine.prompt_images import PromptIds as PromptIds
from sporelm.engine.prompt_images import PromptImage, image_row_ids
from sporelm.errors import ContextOverflow, RequestError, safe_repr
from sporelm.models.tower_inputs import ImageInput
from sporelm.text import RenderedPrompt, Tokenizer
from sporelm.text.chat_templates.chat_messages import IMAGE
from sporelm.vision.image_decoding import ImageDecoder
from sporelm.vision.image_processor import ImageProcessor, ProcessedImage
from sporelm.vision.image_sources import decode_base64, load_frames, read_data_uri

MAX_CACHE_BYTES = 128 << 20  # of the cache of patches
IMAGE_URL = "image_url"  # the type of image parts in OpenAI's API
ADDRESS_KEYS, BASE64 = ("path", "url"), "base64"  # keys of a picture in transformers' image parts
Message = Mapping[str, Any]
PositionsOf = Callable[[ImageInput], NDArray[np.int32]]
CheckImage = Callable[[ImageInput], None]


class TakenImages(NamedTuple):
    """Messages without the data of their pictures, and the pictures in order."""

    messages: Sequence[Message]
    pictures: list[ProcessedImage]


class ImageReader:
    """Turns the pictures of one model's prompts into tower inputs. Threads may share it."""

    def __init__(
        self,
        processor: ImageProcessor,
        tower_key: bytes,
        tokenizer: Tokenizer,
        positions_of: PositionsOf | None,
        max_context: int,
        check_image: CheckImage,
    ) -> None:
        """
        tower_key      a hash of the tower, so that row ids of the same picture differ between towers
        positions_of   the rotary positions of an image's rows, for models with M-RoPE
        max_context    maximum tokens of a prompt
        check_image    raises RequestError for an input that is too large for the tower
        """
        self.processor, self.tower_key, self.tokenizer = processor, tower_key, tokenizer
        self.positions_of, self.max_context, self.check_image = positions_of, max_context, check_image
        self.max_images = MAX_IMAGES  # of one request
        self.max_seconds = MAX_SECONDS  # for the pictures of one untrusted request
        self.max_cache_bytes = MAX_CACHE_BYTES
        self.decoder = ImageDecoder(isolated=False)
        self.is_isolated = False  # whether input is untrusted: a child process decodes, and paths are not read
        row_token = tokenizer.control_id(processor.row_token)
        self.is_row_token_known = row_token is not None
        self.row_token_id = 0 if row_token is None else row_token
        # By tenant and hash of the file: timing must not tell a tenant whether another one sent a picture.
        self._cache: OrderedDict[tuple[str, bytes], list[ProcessedImage]] = OrderedDict()
        self._lock = Lock()

    def isolate(self) -> None:
        """Treat input as untrusted from now on: decode files in a child process, and read no paths."""
        self.decoder, self.is_isolated = ImageDecoder(), True

    def close(self) -> None:
        """End the child process."""
        self.decoder.close()

    def take_images(self, messages: Any, tenant: str = "", is_cancelled: IsCancelled | None = None) -> TakenImages:
        """Return messages whose pictures are read and processed; a part of several frames becomes as many parts.

        tenant         for round-robin in the child process, and separate cache entries
        is_cancelled   polled between pictures and frames; reading stops if it returns true

        Parts are {"type": "image", "image": ...}, {"type": "image_url", "image_url": {"url": "data:..."}}, or those of
        transformers, with the key "path", "url" or "base64" in place of "image". Raises RequestError, which names the
        message and the part; ContextOverflow, which names the picture, before more is decoded or processed than the
        context holds.
        """
        if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
            return TakenImages(messages, [])  # type: ignore[arg-type]  # `check_messages` refuses it
        budget = self._make_budget(count_pictures(messages), is_cancelled)
        taken, pictures = [], list[ProcessedImage]()
        for index, message in enumerate(messages):
            content = message.get("content") if isinstance(message, Mapping) else None
            if not isinstance(content, list | tuple):
                taken.append(message)
                continue
            parts = []
            for place, part in enumerate(content):
                if not is_picture(part):
                    parts.append(part)
                    continue
                try:
                    processed = self._read(picture_of(part), tenant, budget)
                except ContextOverflow:
                    raise
                except RequestError as error:
                    raise type(error)(f"message {index}, part {place}: {error}") from None
                pictures += processed
                parts += [{"type": IMAGE}] * len(processed)
            taken.append({**message, "content": parts})
        return TakenImages(taken, pictures)

    def read(self, value: Any, tenant: str = "") -> list[ProcessedImage]:
        """Return the frames of a picture, as the tower reads them. Raises RequestError, ContextOverflow."""
        return self._read(value, tenant, self._make_budget(1))

    def _make_budget(self, num_images: int, is_cancelled: IsCancelled | None = None) -> ImageBudget:
        return ImageBudget(
            num_images,
            self.max_context,
            max_images=self.max_images,
            max_seconds=self.max_seconds if self.is_isolated else None,
            is_cancelled=is_cancelled,
        )

    def _read(self, value: Any, tenant: str, budget: ImageBudget) -> list[ProcessedImage]:
        budget.begin_image()
        if self.is_isolated and isinstance(value, str):  # untrusted: must not be a path
            value = read_data_uri(value, self.decoder.limits)
        is_file = isinstance(value, bytes | bytearray | memoryview)
        key = (tenant, blake2b(value, digest_size=16).digest()) if is_file else None
        with self._lock:
            pictures = self._cache.get(key) if key is not None else None
            if key is not None and pictures is not None:
                self._cache.move_to_end(key)
        if pictures is not None:
            for picture in pictures:
                budget.add_frame(sum(image.num_rows for image in picture.images))
            return pictures
        if self.is_isolated and is_file:
            frames = self.decoder.decode(bytes(value), tenant).frames
        else:
            frames = load_frames(value, decoder=self.decoder)
        pictures = [self._process(frame, budget) for frame in frames]
        if key is not None:
            self._keep(key, pictures)
        return pictures

    def _process(self, frame: NDArray[np.uint8], budget: ImageBudget) -> ProcessedImage:
        budget.add_frame(self.processor.count_rows(frame.shape[1], frame.shape[0]))
        picture = self.processor.process(frame)
        for image in picture.images:
            self.check_image(image)
        return picture

    def _keep(self, key: tuple[str, bytes], pictures: list[ProcessedImage]) -> None:
        """Cache a picture if it is not too large, and evict the least recently used ones if needed."""
        if count_bytes(pictures) > self.max_cache_bytes:
            return
        with self._lock:
            self._cache[key] = pictures
            total = sum(map(count_bytes, self._cache.values()))
            while total > self.max_cache_bytes:
                total -= count_bytes(self._cache.popitem(last=False)[1])

    def expand(self, rendered: RenderedPrompt, pictures: Sequence[ProcessedImage]) -> RenderedPrompt:
        """Return a rendered chat in which each placeholder is replaced by the rows of its picture.

        Raises RequestError if the template has dropped some pictures.
        """
        num_places = rendered.count_template_text(self.processor.placeholder)
        if num_places != len(pictures):
            raise RequestError(
                f"image: the chat template renders {num_places} of {len(pictures)} pictures. Put pictures into messages"
                " of the user."
            )
        if not pictures:
            return rendered
        texts = [self.processor.text_in_prompt(each, number) for number, each in enumerate(pictures)]
        expanded = rendered.replace_template_text(self.processor.placeholder, texts)
        return replace(expanded, images=tuple(image for each in pictures for image in each.images))

    def insert_into_text(self, text: str, pictures: Sequence[ProcessedImage]) -> RenderedPrompt:
        """Return raw text with pictures at its placeholders; before it if it has none. All of it is template text.

        Raises RequestError if the number of placeholders differs from the number of pictures.
        """
        num_places = text.count(self.processor.placeholder)
        if num_places == 0:
            text = self.image_text * len(pictures) + text
        elif num_places != len(pictures):
            raise RequestError(
                f"image: the placeholders {self.processor.placeholder} in the text do not match the pictures (got "
                f"{num_places} for {len(pictures)}). Write one for each, or none."
            )
        return self.expand(RenderedPrompt(((text, True),)), pictures)

    @property
    def image_text(self) -> str:
        """The text for a picture where a template does not write it."""
        return self.processor.prompt_text or self.processor.placeholder

    def encode(self, rendered: RenderedPrompt) -> PromptIds:
        """Return the ids of an expanded prompt, with those of image rows, and the images."""
        ids = self._encode_rows(rendered)
        images, place = list[PromptImage](), 0
        num_rows = sum(token == self.row_token_id for token in ids) if self.is_row_token_known else 0
        for image in rendered.images:
            if self.is_row_token_known and num_rows < image.num_rows:
                break  # the text ends before
            place = self._find_rows(ids, place)
            if place < 0:
                break
            key = blake2b(image.digest + self.tower_key, digest_size=16).digest()
            positions = None if self.positions_of is None else self.positions_of(image)
            images.append(PromptImage(place, image, key, self.row_token_id, positions))
            ids[place : place + image.num_rows] = image_row_ids(key, image.num_rows)
            place += image.num_rows
            num_rows -= image.num_rows
        if num_rows and self.is_row_token_known:
            raise RequestError("image: the prompt ends inside a picture, or has other image tokens. Render it again.")
        return PromptIds(ids, images)

    def _find_rows(self, ids: list[int], place: int) -> int:
        """Return the position of the next id of an image row; -1 if there is none."""
        row_id = self.row_token_id if self.is_row_token_known else UNKNOWN_ROW
        try:
            return ids.index(row_id, place)
        except ValueError:
            return -1

    def _encode_rows(self, rendered: RenderedPrompt) -> list[int]:
        """Return the ids of a prompt; UNKNOWN_ROW for image rows if the vocabulary has no token for them.

        Then the texts between images are encoded one by one, as llama.cpp's mtmd does.
        """
        if self.is_row_token_known:
            return self.tokenizer.encode_prompt(rendered)
        row_token = self.processor.row_token
        ids, spans, is_first = list[int](), list[tuple[str, bool]](), True
        for text, is_template in rendered.spans:
            pieces = text.split(row_token) if is_template else [text]
            for number, piece in enumerate(pieces):
                if number:
                    ids += self._encode_part(spans, is_first=is_first) if spans else []
                    ids.append(UNKNOWN_ROW)
                    spans, is_first = [], False
                if piece:
                    spans.append((piece, is_template))
        return ids + (self._encode_part(spans, is_first=is_first) if spans else [])

    def _encode_part(self, spans: list[tuple[str, bool]], *, is_first: bool) -> list[int]:
        ids = self.tokenizer.encode_prompt(RenderedPrompt.join(spans))
        return ids[1:] if not is_first and ids[:1] == [self.tokenizer.bos_id] else ids


UNKNOWN_ROW = -1  # placeholder id of an image row


def is_picture(part: Any) -> bool:
    """Return whether a part of a message is a picture."""
    return isinstance(part, Mapping) and part.get("type") in (IMAGE, IMAGE_URL)


def has_pictures(messages: Any) -> bool:
    """Return whether messages have pictures."""
    return count_pictures(messages) > 0


def count_pictures(messages: Any) -> int:
    """Return the number of parts of messages that are pictures."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        return 0
    contents = [message.get("content") for message in messages if isinstance(message, Mapping)]
    return sum(is_picture(part) for content in contents if isinstance(content, list | tuple) for part in content)


def picture_of(part: Mapping[str, Any]) -> Any:
    """Return the data of an image part. Raises RequestError for a part without it."""
    if part["type"] == IMAGE:
        return _find_data(part)
    address = part.get(IMAGE_URL)
    url = address.get("url") if isinstance(address, Mapping) else address
    if not isinstance(url, str):
        raise RequestError(f"image_url is {safe_repr(address)}: it must have a url, data:image/png;base64,...")
    return url


def _find_data(part: Mapping[str, Any]) -> Any:
    """Return the data of a part of the type "image"."""
    if IMAGE in part:
        return part[IMAGE]
    found = next((part[key] for key in ADDRESS_KEYS if key in part), None)
    if found is not None:
        return found
    data = part.get(BASE64)
    if not isinstance(data, str):
        names = safe_repr(", ".join(map(str, part)))
        raise RequestError(f"image part: no key 'image' (got the keys {names}). Put the picture under 'image'.")
    if data.startswith("data:"):
        return data
    try:
        return decode_base64(data)
    except ValueError as reason:
        raise RequestError(f"image part: its base64 is not valid ({reason}). Encode the bytes of the file.") from None


def count_bytes(pictures: Sequence[ProcessedImage]) -> int:
    """Return the size in bytes of the patches of pictures."""
    return sum(image.patches.nbytes for each in pictures for image in each.images)
