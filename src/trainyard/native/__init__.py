"""Decoding, augmentation, checksums and waits in C, if built: here in a wheel, in the cache for a checkout."""

import ctypes
import functools
import hashlib
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

HERE = Path(__file__).parent
Box = ctypes.c_double * 4  # left, top, width, height
Bounds = ctypes.c_int * 4  # left, top, right, bottom


def library_path() -> Path | None:
    """Where the compiled decoder is, if it is."""
    if (beside := HERE / "jpeg.so").is_file():
        return beside
    try:
        cached = cached_path()
    except RuntimeError:  # a user without a home keeps nothing
        return None
    return cached if cached.is_file() else None


def cached_path() -> Path:
    """Where a checkout keeps what it compiled, by content of the source; raises RuntimeError where there is no home."""
    cache = Path(os.environ.get("TRAINYARD_CACHE") or Path.home() / ".cache/trainyard")
    compiler = HERE / "compile.py"  # not in a wheel, perhaps
    made_by = compiler.read_bytes() if compiler.is_file() else b""
    return cache / "native" / f"jpeg-{hashlib.sha256(sources() + made_by).hexdigest()[:16]}.so"


def sources() -> bytes:
    """All C sources, one after the other."""
    return b"".join(path.read_bytes() for path in sorted(HERE.glob("*.[ch]")))


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the compiled decoder, loaded; None where there is none or it does not fit this machine."""
    path = library_path()
    if path is None:
        return None
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError:
        return None
    data, size, box, bounds, number = ctypes.c_char_p, ctypes.c_size_t, Box, Bounds, ctypes.c_int
    # reading a header takes less time than releasing and taking Python's lock
    loaded.trainyard_size = ctypes.PyDLL(str(path)).trainyard_size  # type: ignore[attr-defined]
    loaded.trainyard_version.restype = ctypes.c_char_p
    loaded.trainyard_size.argtypes = [data, size, ctypes.POINTER(number)]
    changes: list[Any] = [data, number, data]  # steps, how many, the colour that fills
    loaded.trainyard_make.argtypes = [data, size, box, bounds, *[number] * 3, *changes, number, ctypes.c_void_p]
    loaded.trainyard_change.argtypes = [ctypes.c_void_p, number, number, *changes]
    loaded.trainyard_rewrite.argtypes = [ctypes.c_void_p, size, number, ctypes.c_void_p, ctypes.POINTER(size)]
    loaded.trainyard_crc32.argtypes, loaded.trainyard_crc32.restype = [data, size], ctypes.c_uint32
    loaded.trainyard_resize.argtypes = [ctypes.c_void_p, number, number, box, bounds, *[number] * 3, ctypes.c_void_p]
    return loaded


def crc32(content: bytes) -> int:
    """Compute zlib's CRC-32, several times as fast where the CPU multiplies without carries."""
    return _crc32()(content, len(content))


@functools.cache
def _crc32() -> Callable[[bytes, int], int]:
    loaded = library()
    if loaded is not None and loaded.trainyard_has_crc32():
        return cast(Callable[[bytes, int], int], loaded.trainyard_crc32)
    return lambda content, _: zlib.crc32(content)
