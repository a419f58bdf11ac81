"""The former name of `sporelm.files.safetensors`."""

from sporelm.files.safetensors import *  # noqa: F403
