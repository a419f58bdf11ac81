"""The tensors of an architecture in one kind of files: the tensor half of the schemas of GGUF and Hugging Face."""

from collections.abc import Container, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self

from sporelm.checkpoints.row_cuts import RowCut
from sporelm.checkpoints.tensor_mapping import MappedTensor, TensorInfo, TensorMapping, map_tensor
from sporelm.checkpoints.tensor_names import HF, Kind, find_mtp_tensors, find_unread, split_layer_number
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable, alternatives
from sporelm.checkpoints.transforms import Shape
from sporelm.models.config import ModelConfig
from sporelm.models.params import Param

# Ends of names -> their spelling in folders converted from TensorFlow.
TENSORFLOW_NAMES: Final = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
# Prefixes of a text model's names -> those in multimodal folders: of transformers 5, and of transformers 4.
TEXT_MODEL_PREFIXES: Final = (
    ("model.", "model.language_model."),
    ("model.", "language_model.model."),
    ("lm_head.", "language_model.lm_head."),
)
# The same for tables with the names of multimodal folders: of the text model alone, and of transformers 4.
INNER_MODEL_PREFIXES: Final = (
    ("model.language_model.", "model."),
    ("model.language_model.", "language_model.model."),
    ("lm_head.", "language_model.lm_head."),
)


@dataclass(frozen=True)
class FileNames:
    """The names of a file's tensors."""

    names: tuple[str, ...]

    @cached_property
    def with_templates(self) -> frozenset[str]:
        """The names, and their templates. Only tables with alternatives need them."""
        return frozenset((*self.names, *(split_layer_number(name)[0] for name in self.names)))


class TensorSchema:
    """The tensor names and transforms of a schema. Schemas set these attributes and override these methods.

    module                the name of the module of schemas
    kind                  of the files: "gguf" or "hf"
    tensors               the table of stored tensors by parameter, see `tensor_table.py`
    ignored_tensors       templates of stored names that are not read, or prefixes of them, "...*"
    name_prefix           prefix that stored names may lack
    optional_prefixes     prefixes that stored names may have, at most one of them
    prefix_variants       prefixes of stored names, each with an alternative
    resaved_names         parts of stored names, each with its name in folders written by transformers 5
    module_names          parts of stored names, each with its name in transformers' modules, as in PEFT adapters;
                          they are replaced one after the other
    has_mtp_layers        files may have layers past the last one for multi-token prediction (MTP): they are not read
    metadata_tensors      keys of GGUF metadata that hold a parameter, one entry for each layer -> the shape of an
                          entry; the table has the keys as stored names
    """

    module: str = ""
    kind: Kind
    tensors: TensorTable = {}
    ignored_tensors: tuple[str, ...] = ()
    name_prefix: str = ""
    optional_prefixes: tuple[str, ...] = ()
    prefix_variants: tuple[tuple[str, str], ...] = ()
    resaved_names: tuple[tuple[str, str], ...] = ()
    module_names: tuple[tuple[str, str], ...] = ()
    has_mtp_layers: bool = False
    metadata_tensors: Mapping[str, Shape] = {}
    file_names: "FileNames | None" = None  # of `for_file`

    def tensor_table(self, config: ModelConfig) -> TensorTable:
        """Return the table for a configuration."""
        return self.tensors

    def layer_config(self, config: ModelConfig, layer: int) -> ModelConfig:
        """Return the configuration for transforms of a layer's tensors, if layers differ."""
        return config

    def required_tensors(self, config: ModelConfig) -> dict[str, Shape]:
        """Return shapes of stored tensors that llama.cpp requires and that are not parameters.

        They are zeros where a folder lacks them; missing rows repeat the first row.
        """
        return {}

    def row_cuts(self, config: ModelConfig) -> list[RowCut]:
        """Return the tensors that transformers may have split at other rows than the parameters."""
        return []

    def with_attributes(self, **attributes: Any) -> Self:
        """Return a copy of the schema with other attributes."""
        found = copy(self)
        for name, value in attributes.items():
            setattr(found, name, value)
        return found

    def for_file(self, names: Iterable[str]) -> Self:
        """Return the schema for a file with tensors of these names, which select the table's alternatives."""
        return self.with_attributes(file_names=FileNames(tuple(names)))

    def resolve(
        self, params: Iterable[Param], config: ModelConfig, tensors: Mapping[str, TensorInfo] | None = None
    ) -> TensorMapping:
        """Return the stored tensors of these parameters.

        tensors   of the file, by name: some transforms depend on their shape or number format, and the spelling of
                  names. None: there is no file yet, or it will be written
        """
        table = self.tensor_table(config)
        rows: dict[str, StoredAs | None] = {}  # by template

        def map_param(param: Param) -> MappedTensor:
            template, layer = split_layer_number(param.name)
            if template not in rows:
                rows[template] = self._choose(table, template)
            stored = rows[template]
            if stored is None:  # a parameter without a row is stored under its own name
                return map_tensor(param, param.name, (), config, tensors)
            name = stored.name.replace("{}", layer)
            name = name if tensors is None else self.find_spelling(name, tensors)
            own_config = self.layer_config(config, int(layer)) if layer else config
            return map_tensor(param, name, stored.transforms, own_config, tensors)

        return TensorMapping(tuple(map_param(param) for param in params))

    def stored_name(self, parameter: str, config: ModelConfig, tensors: Container[str] | None = None) -> str:
        """Return the name of the stored tensor of a parameter, or of the first of several.

        tensors   of a file, which determine the spelling; None: as in the table
        """
        template, layer = split_layer_number(parameter)
        stored = self._choose(self.tensor_table(config), template)
        name = stored.name.replace("{}", layer) if stored else parameter
        return (name if tensors is None else self.find_spelling(name, tensors)).replace("{e}", "0")

    def stored_templates(self, template: str) -> set[str]:
        """Return the names of a parameter in files, all alternatives, with `{}` for the layer."""
        return {each.name for each in alternatives(self.tensors.get(template, ()))}

    def find_ignored(self, names: Iterable[str], config: ModelConfig | None = None) -> set[str]:
        """Return the stored names that are not read; with a configuration, those of MTP layers too."""
        names = list(names)
        found = find_unread(names, self.kind, self.ignored_tensors)
        if self.has_mtp_layers and config is not None:
            found |= find_mtp_tensors(names, config.layers)
        return found

    def find_spelling(self, name: str, tensors: Container[str]) -> str:
        """Return the spelling of a name in a file with these tensors; the name itself if the file lacks the tensor."""
        return next((each for each in self._spellings(name) if each.replace("{e}", "0") in tensors), name)

    def find_other_names(self, config: ModelConfig) -> dict[str, list[str]]:
        """Return names of tensors in other folders or in transformers -> their possible names in the table, all as
        templates.

        A layer has one of the latter.
        """
        found: dict[str, list[str]] = {}
        table = self.tensor_table(config)
        for template, row in table.items():
            chosen = self._choose(table, template)
            assert chosen is not None
            name = chosen.name
            others = [each.name for each in alternatives(row) if each.transforms == chosen.transforms]
            others += [new + name.removeprefix(old) for old, new in self.prefix_variants if name.startswith(old)]
            module = name
            for part, module_part in self.module_names:
                module = module.replace(part, module_part, 1)
            others += [module, *(name.replace(part, resaved, 1) for part, resaved in self.resaved_names)]
            for other in others:
                if other != name and name not in found.setdefault(other, []):
                    found[other].append(name)
        return found

    def _choose(self, table: TensorTable, template: str) -> StoredAs | None:
        """Return the first alternative of a parameter's row that the file has in any layer, else the first one; None
        for a parameter without a row."""
        row = table.get(template)
        if row is None:
            return None
        rows = alternatives(row)
        return next((each for each in rows if self._is_in_file(each)), rows[0]) if len(rows) > 1 else rows[0]

    def _is_in_file(self, stored: StoredAs) -> bool:
        found = self.file_names.with_templates if self.file_names else frozenset[str]()
        return any(each.replace("{e}", "0") in found for each in self._spellings(stored.name))

    def _spellings(self, name: str) -> Iterator[str]:
        """Yield the spellings of a name of the table, the most likely first."""
        if self.kind != HF:
            yield name
            return
        names = [name, *(name.removesuffix(end) + old for end, old in TENSORFLOW_NAMES.items() if name.endswith(end))]
        names += [name.replace(part, resaved, 1) for part, resaved in self.resaved_names]
        names += [new + name.removeprefix(old) for old, new in self.prefix_variants if name.startswith(old)]
        bases = [base for full in names for base in (full, full.removeprefix(self.name_prefix))]
        yield from (front + base for front in ("", *self.optional_prefixes) for base in bases)
