"""The model store: what MODEL means, how a model gets into the user's folder of models, and out of it.

A stored model is a folder `<store>/<name>/` with one GGUF file (or the splits of one) or a Hugging Face folder's files;
models of the hub lie in `<store>/hf/<owner>/<name>/`. A model appears there whole or not at all.
"""

from sporelm.files.store.known_models import DEFAULT, KNOWN, Progress, WheelModel
from sporelm.files.store.model_names import did_you_mean, find, known_names, local_path, pull, resolve
from sporelm.files.store.removal import planned_removal, remove
from sporelm.files.store.store_entries import Entry, Unfinished, entries, listing, names, unfinished
from sporelm.files.store.store_folders import checked_name, folder_content, holds_model, is_name

__all__ = [
    "DEFAULT",
    "KNOWN",
    "Entry",
    "Progress",
    "Unfinished",
    "WheelModel",
    "checked_name",
    "did_you_mean",
    "entries",
    "find",
    "folder_content",
    "holds_model",
    "is_name",
    "known_names",
    "listing",
    "local_path",
    "names",
    "planned_removal",
    "pull",
    "remove",
    "resolve",
    "unfinished",
]
