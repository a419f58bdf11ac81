"""Makes minicpmv_goldens.json: what the image processors of MiniCPM-V's authors return.

    python tests/data/make_minicpmv_goldens.py FILE_OF_2_6 FILE_OF_2_5

Each file is image_processing_minicpmv.py of a published folder, openbmb/MiniCPM-V-2_6 and openbmb/MiniCPM-Llama3-V-2_5.
They need transformers and torch.
"""

import json
import sys
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

SIZES = [(2, 2), (1, 9), (300, 2), (5, 700), (56, 56), (57, 56), (100, 50), (45, 200), (250, 166), (37, 53), (500, 45)]
SETTINGS = {"max_slice_nums": 9, "scale_resolution": 56, "patch_size": 7, "image_feature_size": 3}
FEW = {"max_slice_nums": 4, "norm_mean": [0.4, 0.5, 0.6], "norm_std": [0.3, 0.4, 0.5]}
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "2.6": (3, SETTINGS | {"use_image_id": True}),
    "2.6 few slices": (3, SETTINGS | FEW),
    "2.5": (2, SETTINGS),
}


def noise(width: int, height: int) -> np.ndarray:
    """A picture: uint8 [height, width, 3]."""
    return np.random.default_rng(width * 1000 + height).integers(0, 256, (height, width, 3), np.uint8)


def describe(grids: list[list[int]], patches: list[np.ndarray], text: str) -> dict[str, Any]:
    """Return what is compared: grids (height, width), the sum and some values of each slice, and a hash of the text."""
    probes = [
        [round(float(each.sum(dtype=np.float64)), 3), *map(float, each[0, :3]), *map(float, each[-1, -3:])]
        for each in patches
    ]
    return {"grids": grids, "patches": probes, "text": blake2b(text.encode(), digest_size=8).hexdigest()}


def run_theirs(path: str, version: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    from PIL import Image

    source = Path(path).read_text().replace("AutoImageProcessor.register", "(lambda *names: None)")
    names: dict[str, Any] = {}
    exec(compile(source, path, "exec"), names)
    processor, found, patch = names["MiniCPMVImageProcessor"](**settings), [], settings["patch_size"]
    for width, height in SIZES:
        image = Image.fromarray(noise(width, height))
        out = processor.preprocess(image if version == 3 else [image])
        number = (2,) if version == 3 else ()
        parts = [np.asarray(each, np.float32) for each in out["pixel_values"][0]]  # [3, patch, patches * patch]
        patches = [each.reshape(3, patch, -1, patch).transpose(2, 0, 1, 3).reshape(-1, 3 * patch**2) for each in parts]
        grids = [[int(side) for side in each] for each in out["tgt_sizes"][0]]
        found.append(describe(grids, patches, processor.get_slice_image_placeholder((width, height), *number)))
    return found


if __name__ == "__main__":
    paths = {3: sys.argv[1], 2: sys.argv[2]}
    goldens = {name: run_theirs(paths[version], version, settings) for name, (version, settings) in CASES.items()}
    place = Path(__file__).with_name("minicpmv_goldens.json")
    place.write_text(
        "{\n" + ",\n".join(f" {json.dumps(name)}: {json.dumps(each)}" for name, each in goldens.items()) + "\n}\n"
    )
