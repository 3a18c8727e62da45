"""Inner loops in C, compiled when the package is installed; without them torch's own operations do the work.

They compute the same numbers up to rounding, use torch's threads, and write nothing but the memory they are
given. `library` says whether they can be used; whoever calls one keeps torch's way beside it, for other
devices, precisions, shapes and machines without a compiler.
"""

import ctypes
import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from manigraph.native import compiling

_VARIANTS = {"AVX512": ("avx512.so", 16), "AVX2": ("avx2.so", 8)}
"""What torch says of the processor, to the library that suits it and the width of its vectors."""

_is_on = True


def use_native(use: bool) -> None:
    """Whether this process uses them, where it can; it does unless told otherwise."""
    global _is_on
    _is_on = use


@contextmanager
def native(use: bool) -> Iterator[None]:
    """The same for a while."""
    before = _is_on
    use_native(use)
    try:
        yield
    finally:
        use_native(before)


def library() -> ctypes.CDLL | None:
    """The compiled inner loops, or None where they are not to be used.

    Where operations are counted, traced or exported, torch's own must be seen, and torch's compiler makes its
    own.
    """
    is_traced = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    if not _is_on or is_traced or torch.compiler.is_compiling():
        return None
    return None if _get_current_dispatch_mode() is not None else loaded_library()


@functools.cache
def loaded_library() -> ctypes.CDLL | None:
    """The compiled inner loops for this processor, or None where there are none."""
    name, _ = _VARIANTS.get(torch.backends.cpu.get_cpu_capability(), ("", 0))
    if not name:
        return None
    path = compiling.FOLDER / name
    if not path.exists():
        return None
    try:
        # They are not linked with an OpenMP library, so this fails where torch has brought none along.
        loaded = ctypes.CDLL(str(path))
        sources = loaded.native_sources
    except (OSError, AttributeError) as error:
        _warn(f"they cannot be loaded ({error})")
        return None
    sources.restype = ctypes.c_char_p
    if sources().decode() != compiling.digest():  # functions may have other arguments
        _warn("they were compiled from other sources: install manigraph again (make setup)")
        return None
    return loaded


def _warn(reason: str) -> None:
    warnings.warn(f"the compiled inner loops of manigraph are not used: {reason}", stacklevel=3)


def lanes() -> int:
    """Numbers in a vector of the processor: sizes must be multiples of it."""
    return _VARIANTS.get(torch.backends.cpu.get_cpu_capability(), ("", 1))[1]


def address(tensor: Tensor) -> ctypes.c_void_p:
    """Where the numbers of a tensor are."""
    return ctypes.c_void_p(tensor.data_ptr())
