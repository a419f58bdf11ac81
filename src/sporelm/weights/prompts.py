"""What a model's makers do to texts before they are embedded: the prompts of config_sentence_transformers.json, and
do_lower_case of sentence_bert_config.json.

GGUF files have no keys for them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from sporelm.errors import ModelFileError, RequestError, UnsupportedModel, shown
from sporelm.weights.fields import Fields
from sporelm.weights.json_object import read_object

NAME, CASES = "config_sentence_transformers.json", "sentence_bert_config.json"


class Prompts(NamedTuple):
    """texts    by name
    default  the name of that which is put before every text for which none is asked; None: there is none
    lower    texts are read in lower case
    """

    texts: Mapping[str, str] = {}
    default: str | None = None
    lower: bool = False

    def named(self, name: str | None) -> str:
        """The prompt of a name, that of None the default, that of "" none. Raises RequestError for an unknown name."""
        name = self.default or "" if name is None else name
        if name in self.texts or name == "":
            return self.texts.get(name, "")
        known = f"it is one of {', '.join(sorted(self.texts))}" if self.texts else "this model's files have no prompts"
        raise RequestError(f"prompt_name is {shown(name)}: {known}")


def prompts_of(path: Path) -> Prompts:
    """Those of a model's folder; none for a file. Raises ModelFileError for damaged files, UnsupportedModel for prompts
    whose rows are not to count when a text's are pooled."""
    place, cases = path / NAME, path / CASES
    lower = cases.is_file() and Fields(read_object(cases), str(cases)).flag("do_lower_case", False)
    if not place.is_file():
        return Prompts(lower=lower)
    values = read_object(place)
    texts, default = values.get("prompts") or {}, values.get("default_prompt_name")
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise ModelFileError(f"{place}: prompts is {shown(texts)}; it must have a text for each name")
    if default is not None and default not in texts:
        raise ModelFileError(f"{place}: default_prompt_name is {shown(default)}, which is none of its prompts")
    for pooling in path.glob("*_Pooling/config.json"):
        if any(texts.values()) and read_object(pooling).get("include_prompt") is False:
            raise UnsupportedModel(f"{pooling}: include_prompt False is not supported for prompts; True is")
    return Prompts(texts, default, lower)
