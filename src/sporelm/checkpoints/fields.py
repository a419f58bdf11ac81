"""The names of `config_values` for families that are not converted yet."""

from sporelm.checkpoints.config_values import MAX_TEXT_LENGTH as LONGEST_NAME
from sporelm.checkpoints.config_values import NO_NAMES as NONE
from sporelm.checkpoints.config_values import ConfigValues as Fields
from sporelm.checkpoints.config_values import shown

__all__ = ["LONGEST_NAME", "NONE", "Fields", "shown"]
