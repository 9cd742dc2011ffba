"""Images of a rollout: a line in their message, and the screen that shows them as the terminal can."""

import pytest
from textual.color import Color
from textual_image.widget import HalfcellImage

from tests.openforge.pictures import b64, encoded, png_that_claims
from tests.openforge_tui.screens.conftest import SIZES
from tests.openforge_tui.screens.test_rollout import to_rollout

PNG = encoded("PNG", (640, 480))


def part(data: bytes) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64(data)}"}}


@pytest.fixture
def look(run) -> str:
    """A rollout whose first turn sends two images, its second one nothing, its third what cannot be shown."""
    rollout = f"{run.run_id}.look.react.0"
    run.state(rollout, "running")
    ask: list[dict[str, object]] = [{"type": "text", "text": "What is on the screen?"}]
    run.unread_call(rollout, [{"role": "user", "content": [*ask, part(PNG), part(encoded("JPEG", (30, 60)))]}])
    run.call(rollout)
    far = {"type": "image_url", "image_url": {"url": "https://example.com/x.png"}}
    bad = [part(PNG[:300]), part(png_that_claims(60000, 60000)), part(b"no image"), far]
    run.unread_call(rollout, [{"role": "tool", "tool_call_id": "x", "content": bad}])
    run.state(rollout, "done")
    return rollout


async def to_images(app, look: str, turn: int = 1) -> None:
    await to_rollout(app, look)
    await app.press(*["down"] * (turn - 1))
    await app.until_text("[image 1: ")
    await app.press("i")
    await app.until_text("image 1 of")
    await app.settled()


def cells(app) -> dict[tuple[int, int], tuple[Color, Color]]:
    """The two colours of each half cell on the screen, by column and row."""
    found = {}
    for y, strip in enumerate(app.view._compositor.render_strips()):
        x = 0
        for text, style, _ in strip:
            for char in text:
                if char == "▀" and style is not None:
                    found[x, y] = Color.from_rich_color(style.color), Color.from_rich_color(style.bgcolor)
                x += 1
    return found


@pytest.mark.parametrize("size", SIZES)
async def test_an_image_stands_in_its_message_and_is_opened_by_a_key(run, look, open_desk, snapshot, size) -> None:
    async with open_desk(size=size) as app:
        await to_rollout(app, look)
        await app.until_text("[image 2: image/jpeg 30x60, ")
        snapshot(app, "rollout-image")
        await app.press("i")
        await app.until_text("half cells")
        snapshot(app, "image")
        shown = cells(app)
        columns, rows = ({place[at] for place in shown} for at in (0, 1))
        assert len(rows) == size[1] - 4, "it is as large as there is room"
        assert len(columns) / len(rows) / 2 == pytest.approx(640 / 480, rel=0.05), "and not distorted"
        assert set(shown.values()) == {(Color(0, 128, 128), Color(0, 128, 128))}, "teal"
        await app.press("escape")
        await app.until_text("turn 1 ─")


async def test_left_and_right_go_through_the_images_of_the_turn(run, look, open_desk) -> None:
    async with open_desk() as app:
        await to_images(app, look)
        for key, number, told in (("right", 2, "30x60"), ("right", 1, "640x480"), ("left", 2, "30x60")):
            await app.press(key)
            await app.until_text(f"image {number} of 2")
            await app.until_text(f"{told}, ")
            assert len(app.view.query(HalfcellImage)) == 1


async def test_a_turn_without_images_has_no_key_for_them(run, look, open_desk) -> None:
    async with open_desk() as app:
        await to_rollout(app, look)
        await app.until_text("i images")
        await app.press("down")
        await app.until(lambda: "i images" not in app.text())
        await app.press("i")
        assert type(app.view).__name__ == "RolloutScreen"


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (1, "This image cannot be shown: damaged: image file is truncated"),
        (2, "This image cannot be shown: more pixels than can be decoded"),
        (3, "This image cannot be shown: damaged, or no PNG, JPEG, GIF or WebP"),
        (4, "This image cannot be shown: at https://example.com/x.png, which is not fetched"),
    ],
)
async def test_an_image_that_cannot_be_shown_says_why(run, look, open_desk, number: int, why: str) -> None:
    async with open_desk(size=(80, 24)) as app:
        await to_images(app, look, turn=3)
        await app.press(*["right"] * (number - 1))
        await app.until_text(why)
        assert ("w writes it to a file" in app.text()) == (number < 4)
        if number == 4:
            await app.press("w")
            assert "there is nothing to write" in str([note.message for note in app.desk._notifications])


async def test_without_colour_it_says_so_and_offers_a_file(run, look, open_desk, snapshot, monkeypatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with open_desk(size=(80, 24)) as app:
        await to_images(app, look)
        await app.until_text("This terminal shows neither graphics nor colours.")
        snapshot(app, "image-no-color")
        assert cells(app) == {}


async def test_it_is_written_to_a_file_and_over_none_without_asking(run, look, open_desk, project) -> None:
    dest = project / f"{look}-turn1-image1.png"
    async with open_desk() as app:
        await to_images(app, look)
        await app.press("w", "enter")
        await app.until(dest.exists)
        assert dest.read_bytes() == PNG
        dest.write_bytes(b"mine")
        await app.press("w", "enter")
        await app.until_text("is there already: enter once more writes over it")
        await app.press("escape")
        assert dest.read_bytes() == b"mine"
        await app.press("w", "enter", "enter")
        await app.until(lambda: dest.read_bytes() == PNG)


async def test_a_place_that_takes_no_file_is_an_error_not_the_end(run, look, open_desk, project) -> None:
    (project / "file").touch()
    async with open_desk() as app:
        await to_images(app, look)
        await app.press("w")
        app.desk.screen.query_one("Input").value = "file/x.png"
        await app.press("enter")
        await app.until(lambda: any("cannot be written" in note.message for note in app.desk._notifications))


async def test_a_large_picture_is_made_small_off_the_event_loop(run, open_desk) -> None:
    rollout = f"{run.run_id}.large.react.0"
    run.state(rollout, "running")
    run.unread_call(rollout, [{"role": "user", "content": [part(encoded("PNG", (6000, 4000)))]}])
    async with open_desk() as app:
        await to_images(app, rollout)
        await app.until_text("6000x4000")
        [shown] = app.view.query(HalfcellImage)
        await app.until(lambda: bool(cells(app)))
        assert shown.image.size == (shown.size.width, shown.size.height * 2)
