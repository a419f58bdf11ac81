"""The tensor half of a schema made from the `Family` record of a family that is not converted yet."""

from collections.abc import Iterable, Sequence
from typing import Any

from sporelm.checkpoints.experts import CHOICE_BIAS
from sporelm.checkpoints.family import Family
from sporelm.checkpoints.lora.adapter import Base
from sporelm.checkpoints.row_cuts import RowCut
from sporelm.checkpoints.tensor_names import GGUF, HF, Kind, Names, OfLayer, Stored, form_in
from sporelm.checkpoints.tensor_schema import TensorSchema
from sporelm.checkpoints.tensor_table import Step, StoredAs, TensorTable
from sporelm.checkpoints.transforms import (
    AddConstant,
    Divide,
    NegativeExp,
    NormalizeRows,
    PermuteColumns,
    PermuteRotary,
    Shape,
    SkipRows,
    SplitHeads,
    Squeeze,
    Stack,
    TakePart,
    TakeRows,
    Transpose,
    Unflatten,
)
from sporelm.models.config import ModelConfig
from sporelm.models.params import Param

ROTATED = (".attn_q.", ".attn_k.")  # in parameters whose rows llama.cpp's converter permutes


class LegacyTensorSchema(TensorSchema):
    """The tensors of a family's record, in files of one kind."""

    def __init__(self, family: Family, kind: Kind) -> None:
        self.family, self.kind = family, kind
        self.ignored_tensors, self.has_mtp_layers = family.ignored, family.further_layers
        self.metadata_tensors = family.listed if kind == GGUF else {}
        if kind == HF:
            self.name_prefix, self.name_fronts = family.prefix, family.fronts
            self.resaved_names, self.module_names = family.resaved, family.modules
        self.tensors = self._table(family.names, family.others.get(kind, ()))

    def tensor_table(self, config: ModelConfig) -> TensorTable:
        names = self.family.table(config)
        return self.tensors if names is self.family.names else self._table(names)

    def layer_config(self, config: ModelConfig, layer: int) -> ModelConfig:
        forms = (form_in(names, self.kind) for names in self.family.names)
        if any(isinstance(form.rows, OfLayer) for form in forms):
            config = config.own.of_layer(config, layer)
        return config

    def required_tensors(self, config: ModelConfig) -> dict[str, Shape]:
        return self.family.wanted(config) if self.family.wanted else {}

    def row_cuts(self, config: ModelConfig) -> list[RowCut]:
        return self.family.row_cuts(config) if self.family.row_cuts else []

    def _table(self, names: Iterable[Names], others: Iterable[Names] = ()) -> TensorTable:
        more: dict[str, list[StoredAs]] = {}
        for each in others:
            more.setdefault(each.ours, []).insert(0, self._stored_as(each))
        found: TensorTable = {}
        for each in names:
            found.setdefault(each.ours, (self._stored_as(each), *more.get(each.ours, ())))
        return found

    def _stored_as(self, names: Names) -> StoredAs:
        form = form_in(names, self.kind)
        steps = legacy_transforms(form, self.kind)
        if self.kind == GGUF and names.ours == CHOICE_BIAS and not steps:
            steps = [Squeeze((0,), optional=True)]
        if self.kind == GGUF and self.family.paired_rows and any(part in names.ours for part in ROTATED):
            steps = [*steps, PermuteRotary()]
        return StoredAs(form.name, *steps)


def legacy_base(params: Sequence[Param], config: ModelConfig, family: Family) -> Base:
    """Return a model of a family as adapters see it."""
    kind: Kind = GGUF if config.architecture == family.gguf else HF
    schemas = LegacyTensorSchema(family, GGUF), LegacyTensorSchema(family, HF)
    return Base(params, config, *schemas, family.called, kind)


def legacy_transforms(form: Stored, kind: Kind) -> list[Step]:
    """Return the transforms of a `Stored` record, in the order in which they load."""
    rows: Any = form.rows.rows if isinstance(form.rows, OfLayer) else form.rows
    if form.each:
        return [Stack()]
    found: list[Step | None]
    if form.inner:
        found = [
            Transpose("keep", form.unturned) if form.transposed else None,
            TakeRows(rows, axis=1) if rows else None,
        ]
    elif form.heads:
        found = [
            TakeRows(rows) if rows else None,
            SplitHeads(),
            Transpose("dequantize") if form.transposed else None,
        ]
    else:
        above = tuple(range(form.above))
        between = (form.above + 1,) if form.between else ()
        found = [
            TakePart(form.part, form.parts) if form.parts else None,
            Squeeze((*above, *between), to_four=form.between and not form.above) if above or between else None,
            Transpose(unless_last=form.unturned) if form.transposed else None,
            Unflatten(optional=kind == GGUF) if form.flat else None,
            PermuteColumns(form.columns) if form.columns else None,
            TakeRows(rows) if rows else None,
            SkipRows(form.skip) if form.skip else None,
            AddConstant(form.plus) if form.plus else None,
            NegativeExp() if form.log else None,
            Divide(form.times) if form.times else None,
            NormalizeRows(form.unit_axis, form.unit) if form.unit else None,
        ]
    return [step for step in found if step]
