"""Images to test with: whole ones, and one whose header lies."""

import base64
import io
import struct
import zlib

import PIL.Image


def encoded(fmt: str = "PNG", size: tuple[int, int] = (640, 480)) -> bytes:
    file = io.BytesIO()
    PIL.Image.new("RGB", size, "teal").save(file, fmt)
    return file.getvalue()


def png_that_claims(width: int, height: int) -> bytes:
    """A PNG of 65 bytes whose header names a size."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(b"")) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()
