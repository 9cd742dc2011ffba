async def to_log(app) -> None:
    await app.press("l")
    await app.until_text("lines")
    await app.settled()


async def test_the_log_follows_until_one_goes_up(run, open_desk) -> None:
    async with open_desk(size=(100, 12)) as app:
        await to_log(app)
        run.state(f"{run.run_id}.now.react.0", "running")
        await app.until_text("now.react.0 running")
        await app.press("up", "up")
        run.state(f"{run.run_id}.later.react.0", "running")
        await app.until_text("⏸ 1 new")
        assert "later.react.0" not in app.text()
        await app.press("end")
        await app.until_text("later.react.0 running")


async def test_the_filter_is_asked_of_old_lines_and_new(run, open_desk) -> None:
    async with open_desk(size=(100, 20)) as app:
        await to_log(app)
        await app.press("slash", *"rename", "enter")
        await app.until(lambda: "fix-mean" not in app.text() and "rename-md" in app.text())
        run.state(f"{run.run_id}.other.react.0", "running")
        run.state(f"{run.run_id}.rename-txt.react.0", "running")
        await app.until_text("rename-txt.react.0")
        assert "other.react" not in app.text()


async def test_an_endless_line_blocks_no_key(run, open_desk) -> None:
    run.state(f"{run.run_id}.long.react.0", "error", error_class="x", detail="a" * 1_000_000)
    async with open_desk(size=(100, 20)) as app:
        await to_log(app)
        await app.press("slash", *"a.*a.*b$", "enter")
        await app.press("escape")
        assert all(len(line) < 2100 for line in app.view._lines)
