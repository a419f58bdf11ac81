"""The story model with a chat template."""

import json
from pathlib import Path
from typing import Any

from copied import copied

# Joins the messages with spaces.
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['content'] + ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '' }}{% endif %}"
)


def write_chat_folder(story: Path, folder: Path, **config: Any) -> Path:
    """Copy the story model to a new folder, with TEMPLATE and with changed fields of its config.json."""
    copied(story, folder)
    update_json(folder / "tokenizer_config.json", chat_template=TEMPLATE)
    if config:
        update_json(folder / "config.json", **config)
    return folder


def update_json(path: Path, **fields: Any) -> None:
    """Set fields of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | fields), encoding="utf-8")
