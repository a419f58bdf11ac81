"""The model store: resolves MODEL to a path, and downloads, lists and removes models in the user's folder.

A stored model is a folder `<store>/<name>/` with one GGUF file (or the splits of one) or a Hugging Face folder's files;
models of the hub are in `<store>/hf/<owner>/<name>/`. Downloads and removals are atomic: no reader finds half a model.
"""

from sporelm.files.store.known_models import DEFAULT, KNOWN, Progress, WheelModel
from sporelm.files.store.model_names import find, known_names, parse_local_path, pull, resolve, suggest_name
from sporelm.files.store.removal import plan_removal, remove
from sporelm.files.store.store_entries import Entry, Unfinished, entries, listing, names, unfinished
from sporelm.files.store.store_folders import check_name, find_model_path, has_model, is_name

__all__ = [
    "DEFAULT",
    "KNOWN",
    "Entry",
    "Progress",
    "Unfinished",
    "WheelModel",
    "check_name",
    "entries",
    "find",
    "find_model_path",
    "has_model",
    "is_name",
    "known_names",
    "listing",
    "names",
    "parse_local_path",
    "plan_removal",
    "pull",
    "remove",
    "resolve",
    "suggest_name",
    "unfinished",
]
