"""Tensors of heads for training, for families that are not converted yet."""

from sporelm.checkpoints.hf.bert import TRAINING_HEADS as HEADS

__all__ = ["HEADS"]
