"""The speed of vision towers beside llama.cpp's libmtmd, from the same mmproj files of random weights.

Usage: python bench/vision_speed.py DIR [--shape NAME,...] [--type f16,q8_0] [--threads N] [--repeat N]
                                        [--models FOLDER] [--json]
DIR is the folder in which bench/peer.sh --mtmd has built llama.cpp.

A sample is the time from the pixels of a picture, resized and normalized, to its rows for the text model: `TowerRunner`
here, `mtmd_encode_chunk` there. Samples alternate: ours, theirs without flash attention, theirs with it; the better of
the two counts. `ratio` is theirs over ours. `share` is the share of the machine's peak rate of multiply-adds, which is
measured in the same run: of integer dot products for matrices in such formats, of float32 for all other products.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / name) for name in ("src", "bench")]

import numpy as np  # noqa: E402
from mtmd import MtmdTower  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from tower_files import write_tower  # noqa: E402

from sporelm.backends.cpu import CpuBackend  # noqa: E402
from sporelm.backends.dot_rates import dot_rate_of  # noqa: E402
from sporelm.checkpoints.loader import load_parameters  # noqa: E402
from sporelm.checkpoints.towers.open_tower import open_tower, tower_gguf_schema  # noqa: E402
from sporelm.cli.doctor import read_cpu_model  # noqa: E402
from sporelm.engine.tower_runner import TowerRunner  # noqa: E402
from sporelm.models.tower_registry import build_tower  # noqa: E402
from sporelm.models.towers.llava import LlavaTowerConfig  # noqa: E402
from sporelm.quant import FORMATS  # noqa: E402
from sporelm.vision.processor_registry import open_processor  # noqa: E402

TEXT_WIDTH = 2048
MEAN_AND_STD = {f"clip.vision.image_{name}": ("[f32]", [0.5, 0.5, 0.5]) for name in ("mean", "std")}
SHAPES: Mapping[str, dict[str, Any]] = {
    "siglip-so400m-378": {"width": 1152, "heads": 16, "ffn": 4304, "layers": 27, "image_size": 378}
    | {"has_class_row": False, "drops_first_row": False, "activation": "gelu_tanh", "eps": 1e-6},
    "clip-l-336": {"width": 1024, "heads": 16, "ffn": 4096, "layers": 24, "image_size": 336}
    | {"has_class_row": True, "drops_first_row": True, "activation": "gelu_quick", "eps": 1e-5},
    "tiny": {"width": 64, "heads": 2, "ffn": 96, "layers": 2, "image_size": 56}
    | {"has_class_row": True, "drops_first_row": True, "activation": "gelu_quick", "eps": 1e-5},
}


class TowerSpeed(NamedTuple):
    """The samples of a tower, in seconds, and the least time that the machine's peak rates allow."""

    ours: list[float]
    theirs: list[float]
    theirs_flash: list[float]
    limit_s: float
    num_rows: int

    def as_row(self) -> dict[str, Any]:
        ours, theirs = median(self.ours), min(median(self.theirs), median(self.theirs_flash))
        return {
            "rows": self.num_rows,
            "ours_s": round(ours, 5),
            "llama_cpp_s": round(median(self.theirs), 5),
            "llama_cpp_flash_s": round(median(self.theirs_flash), 5),
            "ratio": round(theirs / ours, 3),
            "share": round(self.limit_s / ours, 3),
        }


def make_config(name: str) -> LlavaTowerConfig:
    """Return the configuration of a shape: LLaVA's tower, all of whose layers are computed."""
    shape = SHAPES[name]
    schema = tower_gguf_schema("llava")
    config = schema.tower_config(**shape, patch=14, features=(shape["layers"],), out_width=TEXT_WIDTH)
    assert isinstance(config, LlavaTowerConfig)
    return config


def draw_weights(config: LlavaTowerConfig) -> dict[str, NDArray[np.float32]]:
    """Return random parameters. Those of one shape are the same array, which no kernel notices."""
    random, drawn = np.random.default_rng(0), dict[tuple[int, ...], NDArray[np.float32]]()
    found = {}
    for param in build_tower(config).params():
        if param.shape not in drawn:
            drawn[param.shape] = random.standard_normal(param.shape, np.float32) * np.float32(0.02)
        found[param.name] = drawn[param.shape] + np.float32(len(param.shape) == 1 and "norm.weight" in param.name)
    return found


def write_shape(name: str, type_name: str, folder: Path) -> Path:
    """Write the mmproj file of a shape, unless the folder has it already."""
    path = folder / f"{name}-{type_name}.gguf"
    if not path.exists():
        config = make_config(name)
        write_tower(path, config, draw_weights(config), MEAN_AND_STD, FORMATS[type_name.upper()])
    return path


def min_seconds(path: Path, rates: Mapping[str, float]) -> float:
    """Return the time of all multiply-adds of the tower in a file at the machine's peak rates."""
    source = open_tower(path)
    config = source.config
    assert isinstance(config, LlavaTowerConfig)
    rows, seconds = config.tile_rows, 0.0
    for name, info in source.files.tensors.items():
        if len(info.shape) < 2 or "position_embd" in name or "class_embd" in name:
            continue
        form = FORMATS[info.type_name]
        rate = rates["f32_ops_s"] if form.activation == "float" else dot_rate_of(rates, form)
        seconds += 2 * rows * prod(info.shape) / rate
    source.close()
    return seconds + config.layers * 4 * rows**2 * config.width / rates["f32_ops_s"]


class OurTower:
    """A vision tower that is loaded, and one picture."""

    def __init__(self, path: Path, picture: NDArray[np.uint8], threads: int) -> None:
        self.backend = CpuBackend(threads=threads)
        source = open_tower(path)
        config = source.config
        assert isinstance(config, LlavaTowerConfig)
        tower = build_tower(config)
        weights = dict(load_parameters(source, tower.params(), self.backend))
        weights |= {name: self.backend.tensor(table) for name, table in tower.tables().items()}
        (self.image,) = open_processor(source, lambda text: True).process(picture).images
        source.close()
        self.runner = TowerRunner(tower, weights, self.backend)

    def encode(self) -> float:
        """Compute the rows of the picture, and return the seconds that it takes."""
        began = perf_counter()
        self.runner.compute(self.image)
        return perf_counter() - began


def measure(path: Path, peer: Path, threads: int, repeat: int) -> TowerSpeed:
    """Measure a file, in turns with llama.cpp."""
    size = next(shape["image_size"] for name, shape in SHAPES.items() if path.name.startswith(name))
    picture = np.random.default_rng(1).integers(0, 256, (size, size, 3), np.uint8)
    ours = OurTower(path, picture, threads)
    with (
        MtmdTower(peer, path, picture, threads=threads, flash=False) as theirs,
        MtmdTower(peer, path, picture, threads=threads, flash=True) as flash,
    ):
        subjects = (ours, theirs, flash)
        for subject in subjects:
            subject.encode()  # compiles, and allocates
        samples = [[each.encode() for each in subjects] for _ in range(repeat)]
    columns = [list(column) for column in zip(*samples, strict=True)]
    limit = min_seconds(path, ours.backend.measure_limits())
    return TowerSpeed(columns[0], columns[1], columns[2], limit, ours.image.num_rows)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("peer", type=Path, metavar="DIR", help="folder with mtmd-driver, from bench/peer.sh --mtmd")
    parser.add_argument("--shape", default="siglip-so400m-378,clip-l-336", metavar="NAME,...", help=", ".join(SHAPES))
    parser.add_argument("--type", default="f16,q8_0", metavar="NAME,...", help="of the matrices")
    parser.add_argument("--threads", type=int, default=2, metavar="N")
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="samples of each")
    parser.add_argument("--models", type=Path, metavar="FOLDER", help="for the files, which stay there")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    shapes, types = options.shape.split(","), options.type.split(",")
    if unknown := [name for name in shapes if name not in SHAPES]:
        parser.error(f"--shape: unknown {', '.join(unknown)}; choose from {', '.join(SHAPES)}")
    if unknown := [name for name in types if name.upper() not in FORMATS]:
        parser.error(f"--type: unknown {', '.join(unknown)}; take f16, q8_0 or another number format")
    cpu = read_cpu_model()
    if not options.json:
        print(f"{cpu}, {options.threads} threads; seconds a picture, medians of {options.repeat}")
    with TemporaryDirectory() as place:
        folder = options.models or Path(place)
        folder.mkdir(parents=True, exist_ok=True)
        for shape in shapes:
            for type_name in types:
                speed = measure(write_shape(shape, type_name, folder), options.peer, options.threads, options.repeat)
                row = {"shape": shape, "type": type_name, "threads": options.threads, **speed.as_row()}
                if options.json:
                    print(json.dumps({"cpu": cpu, **row, "samples": speed._asdict()}), flush=True)
                else:
                    print("  ".join(f"{key} {value}" for key, value in row.items() if key != "threads"), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
