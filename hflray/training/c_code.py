"""The C code of training: built for this CPU when it is first needed, and the addresses that it takes."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

from torch import Tensor

from hflray.errors import HflrayError
from hflray.support.native import load_library


@functools.cache
def library(name: str) -> ctypes.CDLL:
    """Build the C code ``NAME.c`` of this folder for this CPU, unless the cache folder has the library, and load it.

    Raises:
        HflrayError: there is no compiler, or it fails.
    """
    try:
        return load_library(Path(__file__).with_name(f"{name}.c"))
    except HflrayError as error:
        raise HflrayError(
            f"training.kernel: {name!r} {error} on every machine that trains, or set training.kernel to channels_last"
        ) from None


def pointer(tensor: Tensor) -> ctypes.c_void_p:
    """Return the address of a tensor's numbers, as C code takes it."""
    return ctypes.c_void_p(tensor.data_ptr())
