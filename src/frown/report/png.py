"""Pixels to a PNG data URI, so that a page needs no image files and no image library."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

_GREY, _RGB = 0, 2  # colour types of the PNG format


def encode(pixels: NDArray[np.uint8]) -> bytes:
    """A PNG file of `pixels` (H, W) grey or (H, W, 3) red, green, blue."""
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or pixels.shape[2:] not in ((), (3,)):
        raise ValueError(f"pixels must be uint8 (H, W) or (H, W, 3), not {pixels.shape}")
    height, width = pixels.shape[:2]
    colour = _GREY if pixels.ndim == 2 else _RGB
    lines = pixels.reshape(height, -1)
    # Every scan line starts with its filter; 0 keeps the bytes as they are.
    raw = np.concatenate([np.zeros((height, 1), np.uint8), lines], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def data_uri(pixels: NDArray[np.uint8]) -> str:
    """`pixels` as a value for an image's `src`."""
    return "data:image/png;base64," + base64.b64encode(encode(pixels)).decode("ascii")


def _chunk(name: bytes, data: bytes) -> bytes:
    check = zlib.crc32(name + data)
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", check)
