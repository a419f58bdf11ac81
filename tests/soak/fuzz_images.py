"""Mutated picture files against the isolated decoder.

Usage: python tests/soak/fuzz_images.py [--seconds S] [--seed N] [--keep FOLDER]
Valid files of each format are mutated and decoded. Each result must be a picture within the limits or one clear line of
RequestError; the child must stay below its memory; and the next valid picture must decode. Exit code 1 if one is not
so: then the file is kept in FOLDER. A case depends only on --seed and its number.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from image_files import exif_loop, gif_file, jpeg_with_exif, png_chunk, valid_files, webp_canvas  # noqa: E402
from sporelm.errors import RequestError  # noqa: E402
from sporelm.vision.image_decoding import DecodedImage, ImageDecoder, ImageLimits  # noqa: E402

LIMITS = ImageLimits(max_seconds=4.0, max_memory=512 << 20)
BASE_MEMORY = 512 << 20  # address space of the child before a job: Python, Pillow, and a thread's stack
MAX_IDLE_BYTES = 128 << 20  # resident, between two pictures
CHECK_EVERY = 20  # cases, between two valid pictures
EDGES = (0, 1, 2, 7, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
MAX_FAULTS = 20


def mutate(data: bytes, other: bytes, draw: Random) -> bytes:
    """Return a file with one to eight changes: bits, numbers, pieces that are cut, doubled, moved or another file's.
    The checksums of PNG chunks are corrected half of the time, so that the changes reach the decoder."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 3, 8))):
        size = max(len(changed), 1)
        position = draw.randrange(min(size, draw.choice((64, 256, size))))
        end = min(position + draw.choice((1, 2, 4, 16, 200)), len(changed))
        kind = draw.randrange(8)
        if kind == 0 and changed:
            changed[position] ^= 1 << draw.randrange(8)
        elif kind == 1 and changed:
            changed[position] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
        elif kind == 2:
            width = draw.choice((1, 2, 4))
            value = draw.choice(EDGES) & ((1 << 8 * width) - 1)
            changed[position : position + width] = value.to_bytes(width, draw.choice(("big", "little")))
        elif kind == 3:
            del changed[position:end]
        elif kind == 4:
            changed[position:position] = changed[position:end] * draw.choice((1, 2, 50))
        elif kind == 5:
            del changed[position + 1 + draw.randrange(size) :]
        elif kind == 6:
            start = draw.randrange(max(len(other), 1))
            changed[position:end] = other[start : start + draw.choice((4, 16, 300))]
        else:
            changed[position:end] = draw.randbytes(end - position)
    result = bytes(changed)
    return correct_checksums(result) if result.startswith(b"\x89PNG") and draw.random() < 0.5 else result


def correct_checksums(data: bytes) -> bytes:
    """Return a PNG file with the checksum of each chunk that is complete."""
    pieces, position = [data[:8]], 8
    while position + 12 <= len(data):
        length = int.from_bytes(data[position : position + 4], "big")
        if position + 12 + length > len(data):
            break
        pieces.append(png_chunk(data[position + 4 : position + 8], data[position + 8 : position + 8 + length]))
        position += 12 + length
    return b"".join(pieces) + data[position:]


def check_picture(image: DecodedImage) -> str:
    """Return how a decoded picture exceeds the limits; empty if it does not."""
    width, height = image.size
    if not 1 <= len(image.frames) <= LIMITS.max_frames or width * height > LIMITS.max_pixels:
        return f"{len(image.frames)} frames of {width} x {height}"
    if any(frame.shape != (height, width, 3) for frame in image.frames):
        return "a frame of another shape"
    return ""


def read_memory(pid: int | None, name: str) -> int:
    """Return a value of /proc/PID/status in bytes: VmPeak is the most address space, VmRSS what is resident. 0 if the
    process has ended, or on systems without it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:")), 0)


def run(seconds: float, seed: int, keep: Path) -> int:
    """Decode mutated files for some time; print counts, and return the number of faults."""
    seeds = valid_files()
    seeds |= {"GIF, tiny": gif_file(4, 4, 300), "WebP canvas": webp_canvas(64, 64), "EXIF": jpeg_with_exif(exif_loop())}
    names = sorted(seeds)
    counts: Counter[str] = Counter()
    messages: Counter[str] = Counter()
    faults: list[str] = []
    pids: set[int] = set()
    peak = slowest = 0.0
    number = 0
    end = time.monotonic() + seconds
    with ImageDecoder(LIMITS) as decoder:
        while time.monotonic() < end and len(faults) < MAX_FAULTS:
            number += 1
            draw = Random(f"{seed} {number}")
            name = draw.choice(names)
            data = mutate(seeds[name], seeds[draw.choice(names)], draw)
            fault = ""
            began = time.monotonic()
            try:
                fault = check_picture(decoder.decode(data))
                counts["decoded"] += 1
            except RequestError as error:
                message = str(error)
                counts["refused"] += 1
                messages[message.split(":", 1)[-1].split("(")[0].strip()[:50]] += 1
                if not message.startswith("image: ") or "\n" in message or len(message) > 400:
                    fault = f"unclear error: {message!r}"
            except Exception as error:
                fault = f"{type(error).__name__}: {error}"
            slowest = max(slowest, time.monotonic() - began)
            if decoder.pid is not None:
                pids.add(decoder.pid)
            used = read_memory(decoder.pid, "VmPeak")
            peak = max(peak, used)
            if used > BASE_MEMORY + LIMITS.max_memory:
                fault = fault or f"{used >> 20} MiB of address space"
            if not fault and number % CHECK_EVERY == 0:
                fault = check_next(decoder, seeds["PNG"])
            if fault:
                faults.append(f"case {number} ({name}): {fault}")
                (keep / f"{seed}-{number}").write_bytes(data)
                print(faults[-1], flush=True)
    print(f"{number} cases in {seconds:g} s: {dict(counts)}; {len(pids)} processes; slowest {slowest:.2f} s; "
          f"most address space {peak / (1 << 20):.0f} MiB")  # fmt: skip
    for message, count in messages.most_common():
        print(f"{count:8} {message}")
    print(f"{len(faults)} faults" + (f", kept in {keep}" if faults else ""))
    return len(faults)


def check_next(decoder: ImageDecoder, picture: bytes) -> str:
    """Return why a valid picture does not decode, or the memory that the ones before it left; empty if neither."""
    try:
        size = decoder.decode(picture).size
    except Exception as error:
        return f"the next valid picture: {type(error).__name__}: {error}"
    if size != (64, 48):
        return f"the next valid picture is {size}"
    resident = read_memory(decoder.pid, "VmRSS")
    return f"{resident >> 20} MiB resident between pictures" if resident > MAX_IDLE_BYTES else ""


def main() -> int:
    """Run the command line. Return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for files that show a fault; default: a temporary one")
    options = parser.parse_args()
    keep = options.keep or Path(tempfile.mkdtemp(prefix="image-faults-"))
    keep.mkdir(parents=True, exist_ok=True)
    return 1 if run(options.seconds, options.seed, keep) else 0


if __name__ == "__main__":
    raise SystemExit(main())
