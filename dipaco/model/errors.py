"""Errors of this room: models, meshes and checkpoints that do not fit. The docstring of a class is its message."""

from dipaco.errors import DipacoError, MachineFault


class BadMesh(MachineFault):
    """A mesh of {asked} does not fit {num_devices} devices. {remedy}"""


class DevicesUnfit(MachineFault):
    """The devices of this machine do not fit the run: {problem}. Use a machine with another number of them."""


class BadCheckpoint(DipacoError):
    """`{folder}` cannot be read as a checkpoint: {problem}. {remedy}"""


class CheckpointIncomplete(DipacoError):
    """`{folder}` lacks {lost}. Remove the folder and give the same command again."""


class NoGguf(DipacoError):
    """This run's tokenizer ({kind}) cannot be written as GGUF here. Export without `--gguf`, and convert with llama.cpp's `convert_hf_to_gguf.py`."""


class KernelUnavailable(MachineFault):
    """`model.attention_kernel` is {kernel}, and {device} does not run it for heads of {head_size} values: cudnn is for NVIDIA GPUs, Ampere or later, and with heads above 128 Hopper or later, and splash for TPUs. Use such a machine, or a run with `model.attention_kernel=auto`, which takes what runs."""
