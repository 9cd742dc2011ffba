"""Images as harnesses send them: what they hold, and why one cannot be shown."""

import base64

import pytest

from openforge import images
from openforge.images import Image, from_base64, from_url
from tests.openforge.pictures import b64, encoded, png_that_claims


@pytest.mark.parametrize(("fmt", "suffix"), [("PNG", ".png"), ("JPEG", ".jpg"), ("GIF", ".gif"), ("WEBP", ".webp")])
def test_what_an_image_is_comes_from_its_bytes_not_from_what_it_is_called(fmt: str, suffix: str) -> None:
    data = encoded(fmt)
    found = from_url(f"data:image/x-odd;charset=x;base64,{b64(data)}")
    assert (found.data, found.pixels, found.fault) == (data, (640, 480), "")
    assert (found.media_type, found.suffix) == (f"image/{fmt.lower()}", suffix)
    assert found.told(2).startswith(f"[image 2: image/{fmt.lower()} 640x480, ")


def test_base64_may_be_broken_into_lines() -> None:
    assert from_base64("image/png", base64.encodebytes(encoded()).decode()).pixels == (640, 480)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://example.com/a.png", "[image 1: at https://example.com/a.png, which is not fetched]"),
        ("file:///etc/passwd", "[image 1: at file:///etc/passwd, which is not fetched]"),
        (None, "[image 1: not in the request: the provider has it, or nobody]"),
        ({"url": 7}, "[image 1: not in the request: the provider has it, or nobody]"),
        ("data:image/png;base64", "[image 1: image/png, damaged: its data: address holds no base64]"),
        ("data:image/svg+xml,<svg/>", "[image 1: image/svg+xml, damaged: its data: address holds no base64]"),
        ("data:image/png;base64,AA", "[image 1: image/png, damaged: its base64 cannot be read]"),
        ("data:image/png;base64,💥", "[image 1: image/png, damaged: its base64 cannot be read]"),
        ("data:image/png;base64,", "[image 1: image/png, empty]"),
        ("data:image/png;base64,AAAA", "[image 1: image/png, 3 bytes, damaged, or no PNG, JPEG, GIF or WebP]"),
        ("data:;base64,AAAA", "[image 1: unknown type, 3 bytes, damaged, or no PNG, JPEG, GIF or WebP]"),
        (f"data:image/eps;base64,{b64(b'%!PS-Adobe-3.0 EPSF')}",
         "[image 1: image/eps, 19 bytes, damaged, or no PNG, JPEG, GIF or WebP]"),
        (f"data:image/png;base64,{b64(png_that_claims(9000, 9000))}",
         "[image 1: image/png 9000x9000, 65 bytes, more than 50 million pixels are not decoded]"),
        (f"data:image/png;base64,{b64(png_that_claims(60000, 60000))}",
         "[image 1: image/png, 65 bytes, more pixels than can be decoded]"),
    ],
)  # fmt: skip
def test_an_image_that_cannot_be_shown_says_why(url: object, told: str) -> None:
    assert from_url(url).told(1) == told


def test_an_image_over_the_limit_is_not_even_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MOST_BYTES", 1000)
    found = from_base64("image/png", "A" * 2000)
    assert (found.data, found.fault) == (b"", "1.5 KB: more than 1000 bytes is not shown")


def test_without_pillow_an_image_is_found_but_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL.Image", None)
    assert from_base64("image/png", b64(encoded())) == Image("image/png", encoded())
