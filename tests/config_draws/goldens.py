"""Drawn configurations that are stored with what transformers computes: where, and how a model of one is made."""

from pathlib import Path
from typing import Any

import numpy as np

from config_draws.bases import is_encoder
from families import Case, write_case

GOLDENS = Path(__file__).parents[1] / "models" / "goldens"
DRAWN, DEFAULTS = GOLDENS / "drawn_configs.json", GOLDENS / "class_defaults.json"
ROWS, COLUMNS = (20, 39), 10


def written(folder: Path, entry: dict[str, Any]) -> Path:
    """Write the folder of a stored configuration, its weights as they follow from its name."""
    config = entry["config"]
    return write_case(folder, Case(entry["name"], config, None, reads=is_encoder(config["architectures"][0])))


def sampled(values: np.ndarray) -> list[float]:
    """Some of a model's values, [rows, columns]: those of two rows and a few columns; all scores of one row."""
    rows = values if len(values) == 1 else values[list(ROWS)]
    columns = np.linspace(0, rows.shape[1] - 1, min(COLUMNS, rows.shape[1])).astype(int)
    return [float(f"{value:.6g}") for value in rows[:, columns].reshape(-1)]
