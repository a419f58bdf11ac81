"""What a model's makers do to texts before they are embedded: the prompts of config_sentence_transformers.json, and
do_lower_case and max_seq_length of sentence_bert_config.json.

GGUF files have no keys for them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.pooling import pooling_files
from sporelm.checkpoints.rope_fields import MAX_CONTEXT
from sporelm.errors import ModelFileError, RequestError, UnsupportedModel, safe_repr
from sporelm.files.json_object import read_object

NAME, CASES = "config_sentence_transformers.json", "sentence_bert_config.json"


class Prompts(NamedTuple):
    """texts    by name
    default  the name of that which is put before every text for which none is asked; None: there is none
    lower    texts are read in lower case
    longest  tokens at which sentence-transformers cuts a text, those around it included; 0: where the context ends
    unpooled the file that says that a prompt's rows do not count when a text's are pooled; "": they do
    """

    texts: Mapping[str, str] = {}
    default: str | None = None
    lower: bool = False
    longest: int = 0
    unpooled: str = ""

    def named(self, name: str | None) -> str:
        """The prompt of a name, that of None the default, that of "" none.

        Raises RequestError for an unknown name, UnsupportedModel for a prompt whose rows are not to count.
        """
        name = self.default or "" if name is None else name
        if isinstance(name, str) and (name in self.texts or name == ""):
            if (text := self.texts.get(name, "")) and self.unpooled:
                raise UnsupportedModel(f"{self.unpooled}: include_prompt False is not supported for prompts; True is")
            return text
        known = f"it is one of {', '.join(sorted(self.texts))}" if self.texts else "this model's files have no prompts"
        raise RequestError(f"prompt_name is {safe_repr(name)}: {known}")


def prompts_of(path: Path) -> Prompts:
    """Those of a model's folder; none for a file. Raises ModelFileError for damaged files."""
    place, cases = path / NAME, path / CASES
    read = ConfigValues(read_object(cases) if cases.is_file() else {}, str(cases))
    lower = read.flag("do_lower_case", False)
    longest = read.integer("max_seq_length", 1, MAX_CONTEXT) if read.has("max_seq_length") else 0
    if not place.is_file():
        return Prompts(lower=lower, longest=longest)
    values = read_object(place)
    texts, default = values.get("prompts") or {}, values.get("default_prompt_name")
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise ModelFileError(f"{place}: prompts is {safe_repr(texts)}; it must have a text for each name")
    if default is not None and (not isinstance(default, str) or default not in texts):
        raise ModelFileError(f"{place}: default_prompt_name is {safe_repr(default)}, which is none of its prompts")
    unpooled = [str(each) for each in pooling_files(path) if read_object(each).get("include_prompt") is False]
    return Prompts(texts, default, lower, longest, unpooled[0] if unpooled else "")


def lost_in_gguf(path: Path) -> tuple[str, ...]:
    """What of it a GGUF file of the folder will not have, a line each. Raises as `prompts_of`."""
    prompts = prompts_of(path)
    named = sorted(name for name, text in prompts.texts.items() if text)
    found = (
        [f"a GGUF file has no place for prompts ({', '.join(named)}): write them in front of texts"] if named else []
    )
    return (*found, *(["a GGUF file cannot say do_lower_case: write texts in lower case"] if prompts.lower else []))
