"""Writes goldens/drawn_configs.json and goldens/class_defaults.json with what transformers says. Needs torch and
transformers:

PYTHONPATH=src:tests python tests/models/make_drawn_goldens.py [FAMILY ...]

drawn_configs.json    a few random configurations of each family (`config_draws`), one a line: config.json, and some of
                      the values that transformers computes from weights that follow from the line's name
class_defaults.json   what each configuration class takes for absent keys
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "src")]

from config_draws.__main__ import quiet  # noqa: E402
from config_draws.bases import bases, class_defaults, classes  # noqa: E402
from config_draws.comparison import draw  # noqa: E402
from config_draws.fields import WITHOUT_MEANING  # noqa: E402
from config_draws.goldens import DEFAULTS, DRAWN, sampled, written  # noqa: E402
from config_draws.reference import run_transformers  # noqa: E402
from sporelm.checkpoints.supported_models import MODELS  # noqa: E402

EACH = 3  # configurations of a family
FIRST = 1000  # number of the first draw, beyond those of the live test


def draw_configs(family: Any) -> list[dict[str, Any]]:
    """Draw a few configurations of a family, of as many of its classes, with transformers' values."""
    own = [name for name in family.names if name in bases() and name in classes()]
    found: list[dict[str, Any]] = []
    number = FIRST
    while own and len(found) < EACH and number < FIRST + 5 * EACH:
        name = own[number % len(own)]
        result = draw(name, number)
        number += 1
        if result.verdict != "equal":
            continue
        config = {key: value for key, value in result.config.items() if key not in WITHOUT_MEANING}
        entry = {"name": f"{name} {number}", "config": config}
        with tempfile.TemporaryDirectory() as place:
            folder = written(Path(place), entry)
            try:
                values = run_transformers(name, folder, "float32")[1]
            except Exception as reason:
                print(f"{name} {number}: {str(reason)[:120]}")
                continue
        found.append(entry | {"span": round(float(np.ptp(values)), 6), "values": sampled(values)})
    return found


def main(families: list[str]) -> None:
    """Write both files; of the first, the lines of some families where they are named."""
    quiet()
    held: dict[str, list[Any]] = {}
    for entry in json.loads(DRAWN.read_text(encoding="utf-8")) if DRAWN.exists() else ():
        name = entry["name"].partition(" ")[0]
        held.setdefault(next(each.module for each in MODELS if name in each.names), []).append(entry)
    for family in MODELS:
        if not families or family.module in families:
            held[family.module] = draw_configs(family)
            lines = [json.dumps(entry) for each in MODELS for entry in held.get(each.module, ())]
            DRAWN.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
    rows = [f"{json.dumps(name)}: {json.dumps(each)}" for name, each in class_defaults().items()]
    DEFAULTS.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    for path in (DRAWN, DEFAULTS):
        print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
