"""Decoding in a child process: results, limits, and faults that stay with their picture."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from image_files import gif_file, noise, png_bomb, saved, valid_files
from sporelm.errors import BackendError, QueueFull, RequestError
from sporelm.processes.isolated_process import BinaryResult, ProcessLimits, SharedResource
from sporelm.vision import image_decoding
from sporelm.vision.image_decoding import ImageDecoder, ImageLimits

FILES = valid_files()


@pytest.fixture(scope="module")
def shared() -> Iterator[ImageDecoder]:
    with ImageDecoder() as decoder:
        yield decoder


def use_job(decoder: ImageDecoder, name: str) -> None:
    """Let the child run a job of this module in place of decoding."""
    decoder._resource = SharedResource(1, f"{__name__}:{name}", lambda: ())


def load_answer_by_size() -> Callable[[bytes], Any]:
    """Load a job that sends replies of a child that was taken over."""
    answers = {
        "name": BinaryResult(["EXE", 1, 1, 1], [bytes(3)]),
        "size": BinaryResult(["PNG", 2, 1, 1], [bytes(3)]),
        "negative": BinaryResult(["PNG", -1, -1, 1], [bytes(3)]),
        "many": BinaryResult(["PNG", 1, 1, 17], [bytes(51)]),
        "type": BinaryResult(["PNG", "1", 1, 1], [bytes(3)]),
        "value": "text",
        "none": None,
    }
    return lambda data: answers[data[8:].decode()]


def load_sleeper() -> Callable[[bytes], None]:
    """Load a job that uses no CPU time, and does not end."""
    return lambda _: time.sleep(600)


def load_spinner() -> Callable[[bytes], None]:
    """Load a job that does not end."""

    def spin(_: bytes) -> None:
        while True:
            pass

    return spin


def load_crasher() -> Callable[[bytes], None]:
    """Load a job that ends its process."""
    return lambda _: os._exit(3)


@pytest.mark.parametrize("name", FILES)
def test_the_child_decodes_as_this_process_does(shared: ImageDecoder, name: str) -> None:
    here = ImageDecoder(isolated=False).decode(FILES[name])
    there = shared.decode(FILES[name])
    assert (there.format, there.size) == (here.format, here.size)
    assert there.size == (there.frames[0].shape[1], there.frames[0].shape[0])
    np.testing.assert_array_equal(there.frames, here.frames)
    for image in (here, there):
        assert not any(frame.flags.writeable for frame in image.frames)
        assert all(frame.dtype == np.uint8 for frame in image.frames)


def test_the_child_starts_with_the_first_picture_and_is_reused() -> None:
    with ImageDecoder() as decoder:
        assert decoder.pid is None
        with pytest.raises(RequestError, match="not a supported picture"):
            decoder.decode(b"text")
        with pytest.raises(RequestError, match="too large"):
            decoder.decode(FILES["PNG"] + bytes(20 << 20))
        assert decoder.pid is None
        decoder.decode(FILES["PNG"])
        pid = decoder.pid
        assert pid is not None
        with pytest.raises(RequestError, match="damaged"):
            decoder.decode(FILES["PNG"][:500])
        decoder.decode(FILES["GIF"])
        assert decoder.pid == pid
    assert decoder.pid is None
    decoder.close()
    with pytest.raises(BackendError, match="the image decoder was closed"):
        decoder.decode(FILES["PNG"])


def test_without_isolation_there_is_no_child() -> None:
    decoder = ImageDecoder(isolated=False)
    decoder.decode(FILES["PNG"])
    assert decoder.pid is None
    with pytest.raises(RequestError, match="damaged"):
        decoder.decode(FILES["PNG"][:500])


def test_threads_and_tasks_share_a_decoder(shared: ImageDecoder) -> None:
    pictures = [saved(Image.fromarray(noise(9, 9, seed=seed)), "PNG") for seed in range(12)]
    with ThreadPoolExecutor(4) as pool:
        for seed, image in enumerate(pool.map(shared.decode, pictures)):
            np.testing.assert_array_equal(image.frames[0], noise(9, 9, seed=seed))

    async def decode() -> list[Any]:
        tasks = [shared.decode_async(data, f"{index % 3}") for index, data in enumerate([*pictures, b"no"])]
        return await asyncio.gather(*tasks, return_exceptions=True)

    *images, error = asyncio.run(decode())
    assert isinstance(error, RequestError)
    for seed, image in enumerate(images):
        np.testing.assert_array_equal(image.frames[0], noise(9, 9, seed=seed))
    here = ImageDecoder(isolated=False)
    assert asyncio.run(here.decode_async(pictures[0])).size == (9, 9)


def test_a_gif_of_many_frames_runs_out_of_time_alone() -> None:
    """Whether the check between frames stops it, or the limit of the process."""
    with ImageDecoder(ImageLimits(max_seconds=0.2)) as decoder:
        assert decoder._process is not None
        decoder._process.limits = ProcessLimits(stall_seconds=60, max_result_bytes=1 << 20)  # the machine may be busy
        decoder.decode(FILES["PNG"])
        began = time.monotonic()
        with pytest.raises(RequestError, match=r"^image: decoding takes too long \(allowed 0\.2 s\)"):
            decoder.decode(gif_file(2, 2, 100_000, (0, 0, 2, 2)))
        assert time.monotonic() - began < 30
        assert decoder.decode(FILES["PNG"]).size == (64, 48)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a job")
def test_a_picture_that_needs_too_much_memory_fails_alone() -> None:
    with ImageDecoder(ImageLimits(max_memory=64 << 20)) as decoder:
        with pytest.raises(RequestError, match=r"needs too much memory \(allowed 64 MiB\)|more memory is needed"):
            decoder.decode(png_bomb(6000, 6000))
        assert decoder.decode(FILES["PNG"]).size == (64, 48)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_large_picture_leaves_no_memory_behind(shared: ImageDecoder) -> None:
    shared.decode(saved(Image.new("RGBA", (4000, 3000), (1, 2, 3, 4)), "PNG"))
    shared.decode(FILES["PNG"])
    pages = int(Path(f"/proc/{shared.pid}/statm").read_text().split()[1])
    assert pages * os.sysconf("SC_PAGE_SIZE") < 60 << 20


@pytest.mark.parametrize("job", ["load_sleeper", "load_spinner"])
def test_a_child_without_an_end_is_killed(job: str) -> None:
    """By the clock, or by its CPU time; the next picture decodes in another one."""
    with ImageDecoder(ImageLimits(max_seconds=0.4)) as decoder:
        process = decoder._process
        assert process is not None
        assert process.limits.stall_seconds == pytest.approx(1.2)
        process.limits = ProcessLimits(stall_seconds=60, max_result_bytes=1 << 20)  # the machine may be busy
        decoder.decode(FILES["PNG"])
        pid = decoder.pid
        resource = decoder._resource
        use_job(decoder, job)
        if job == "load_sleeper":
            process.limits = ProcessLimits(stall_seconds=0.1)
        with pytest.raises(RequestError, match=r"^image: decoding takes too long \(allowed 0\.4 s\)"):
            decoder.decode(FILES["PNG"])
        process.limits = ProcessLimits(stall_seconds=60, max_result_bytes=1 << 20)
        decoder._resource = resource
        assert decoder.decode(FILES["PNG"]).size == (64, 48)
        assert decoder.pid != pid


def test_a_child_that_crashes_fails_one_picture() -> None:
    with ImageDecoder() as decoder:
        resource = decoder._resource
        use_job(decoder, "load_crasher")
        with pytest.raises(RequestError, match=r"the decoder ended while it read the picture \(exit code 3\)"):
            decoder.decode(FILES["PNG"])
        decoder._resource = resource
        assert decoder.decode(FILES["PNG"]).size == (64, 48)


@pytest.mark.parametrize("answer", ["name", "size", "negative", "many", "type", "value", "none"])
def test_replies_of_the_child_are_checked(answer: str) -> None:
    with ImageDecoder() as decoder:
        use_job(decoder, "load_answer_by_size")
        with pytest.raises(BackendError, match="sent an invalid reply"):
            decoder.decode(b"\x89PNG\r\n\x1a\n" + answer.encode())
        until = time.monotonic() + 10
        process = decoder._process
        assert process is not None
        child = process._process
        while child is not None and child.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        assert child is None or child.poll() is not None, "it is killed"


def test_replies_longer_than_the_limit_are_not_read() -> None:
    with ImageDecoder() as decoder:
        process = decoder._process
        assert process is not None
        process.limits = ProcessLimits(max_result_bytes=100)
        with pytest.raises(RequestError, match="the decoder ended"):
            decoder.decode(FILES["PNG"])


def test_too_many_waiting_pictures_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_decoding, "MAX_WAITING_PICTURES", 1)
    with ImageDecoder() as decoder:
        use_job(decoder, "load_sleeper")
        errors: list[Exception] = []

        def decode() -> None:
            try:
                decoder.decode(FILES["PNG"])
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=decode) for _ in range(3)]
        until = time.monotonic() + 30
        threads[0].start()
        while decoder.pid is None and time.monotonic() < until:
            time.sleep(0.01)
        for thread in threads[1:]:
            thread.start()
        while not errors and time.monotonic() < until:
            time.sleep(0.01)
        assert isinstance(errors[0], QueueFull)
        decoder.close()
        for thread in threads:
            thread.join()
        assert [type(error) for error in errors[1:]] == [BackendError] * 2


def test_a_script_may_leave_it_open(tmp_path: Path) -> None:
    """At the end of the interpreter, the child ends too, and nothing is printed."""
    (tmp_path / "picture.png").write_bytes(FILES["PNG"])
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "from sporelm.vision.image_decoding import ImageDecoder\n"
        "decoder = ImageDecoder()\n"
        f"print(decoder.decode(Path({str(tmp_path / 'picture.png')!r}).read_bytes()).size, decoder.pid)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    size, _, pid = done.stdout.strip().rpartition(" ")
    assert size == "(64, 48)"
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    pytest.fail("the child outlives its owner")


def test_the_child_loads_little() -> None:
    """Its start delays the first picture, and each one after a kill."""
    code = (
        "import sys, sporelm.processes.isolated_worker, sporelm.vision.image_worker\n"
        "print([name for name in ('numpy', 'torch', 'llvmlite', 'asyncio') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
