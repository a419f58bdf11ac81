"""The former name of `sporelm.files.gguf`."""

from sporelm.files.gguf import *  # noqa: F403
from sporelm.files.gguf import __all__ as __all__
