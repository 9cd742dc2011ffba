"""An image as a harness sends it: base64 in a `data:` address or in a field of its own. Nothing is ever fetched.

An image that is not here, or is damaged, says why. Pillow reads sizes, where it is installed. Does not know messages
(wire.py), nor how an image gets onto a screen.
"""

import base64
import binascii
import io
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

MOST_BYTES = 20 << 20
MOST_PIXELS = 50_000_000  # decoded: 150 MB
_FORMATS = ("PNG", "JPEG", "GIF", "WEBP")  # what providers take; Pillow's other readers are not for strangers' bytes
_SUFFIXES = {"image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif", "image/webp": ".webp"}


@dataclass(frozen=True, slots=True)
class Image:
    """`fault`: why it cannot be shown, "" when it can. `data` may be there all the same; `pixels` is (width, height),
    None when nobody could tell."""

    media_type: str = ""
    data: bytes = field(default=b"", repr=False)
    pixels: tuple[int, int] | None = None
    fault: str = ""

    @property
    def suffix(self) -> str:
        """Of a file that holds it."""
        return _SUFFIXES.get(self.media_type, ".bin")

    def told(self, number: int) -> str:
        """`[image 1: image/png 640x480, 23 KB]`"""
        pixels = f" {self.pixels[0]}x{self.pixels[1]}" if self.pixels else ""
        known = f"{self.media_type or 'unknown type'}{pixels}"
        facts = [
            known if self.media_type or self.data else "",
            size_text(len(self.data)) if self.data else "",
            self.fault,
        ]
        return f"[image {number}: {', '.join(filter(None, facts))}]"


def size_text(size_bytes: int) -> str:
    """`23 KB`"""
    for unit, size in (("MB", 1 << 20), ("KB", 1 << 10)):
        if size_bytes >= size:
            return f"{size_bytes / size:.{size_bytes < 10 * size:d}f} {unit}"
    return f"{size_bytes} bytes"


def from_url(url: object) -> Image:
    """Of an address: what a `data:` one holds."""
    if not isinstance(url, str) or not url:
        return Image(fault="not in the request: the provider has it, or nobody")
    if url[:5].lower() != "data:":
        return Image(fault=f"at {url[:200]}, which is not fetched")
    head, comma, payload = url[5:].partition(",")
    media_type, *marks = head.split(";")
    if not comma or "base64" not in marks:
        return Image(media_type[:40], fault="damaged: its data: address holds no base64")
    return from_base64(media_type[:40], payload)


def from_base64(media_type: str, text: str) -> Image:
    """Of a media type, as the harness calls it, and base64."""
    if (size := len(text) * 3 // 4) > MOST_BYTES:
        return Image(media_type, fault=f"{size_text(size)}: more than {size_text(MOST_BYTES)} is not shown")
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return Image(media_type, fault="damaged: its base64 cannot be read")
    if not data:
        return Image(media_type, fault="empty")
    return _measured(media_type, data)


def _measured(media_type: str, data: bytes) -> Image:
    try:
        picture = open_picture(data)
    except ImportError:
        return Image(media_type, data)
    except ValueError as error:
        return Image(media_type, data, fault=str(error))
    media_type = f"image/{(picture.format or '').lower()}"
    width, height = picture.size
    fault = (
        f"more than {MOST_PIXELS // 1_000_000} million pixels are not decoded" if width * height > MOST_PIXELS else ""
    )
    return Image(media_type, data, (width, height), fault)


def open_picture(data: bytes) -> "Picture":
    """Its header read, its pixels not yet. ValueError when it is none of the known formats; ImportError without
    Pillow."""
    import PIL.Image

    # said by `fault`, in our own words
    warnings.filterwarnings("ignore", category=PIL.Image.DecompressionBombWarning)
    try:
        return PIL.Image.open(io.BytesIO(data), formats=_FORMATS)
    except PIL.Image.DecompressionBombError:
        raise ValueError("more pixels than can be decoded") from None
    except (OSError, ValueError, SyntaxError, EOFError):
        raise ValueError("damaged, or no PNG, JPEG, GIF or WebP") from None
