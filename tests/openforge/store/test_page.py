"""The HTML page of a run, read by a real Chromium from a file."""

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page
from synthetic import SyntheticRun

from openforge.errors import InfraError, UsageError
from openforge.store.export import export
from openforge.store.page import build
from tests.openforge.pictures import b64, encoded

EVIL = (
    "<script>alert(1)</script></script><img src=x onerror=alert(2)><!--<script> &lt;b&gt; ]]> {{DATA}} "
    "\x1b[31mred \u202eevil\u202c \u2028 \u2029 \x00\x7f\U0001f525"
)
SHOWN = (
    "<script>alert(1)</script></script><img src=x onerror=alert(2)><!--<script> &lt;b&gt; ]]> {{DATA}} "
    "␛[31mred \\u202eevil\\u202c \\u2028 \\u2029 ␀␡\U0001f525"
)


class Opened:
    """A page in a tab, with all that it did besides showing itself."""

    def __init__(self, page: Page) -> None:
        self.page = page
        page.set_default_timeout(10_000)
        self.faults: list[str] = []
        page.on("dialog", lambda dialog: self.faults.append(f"dialog {dialog.message}"))
        page.on("request", lambda request: self.faults.append(request.url) if ".html" not in request.url else None)
        page.on("console", lambda message: self.faults.append(message.text))
        page.on("pageerror", lambda error: self.faults.append(str(error)))

    def rows(self) -> list[str]:
        """The first column of the list, with its harness and sample."""
        return [" ".join(row.split("\t")[:3]) for row in self.page.locator("#rollouts tbody tr").all_inner_texts()]


@pytest.fixture
def visit(chromium: Browser) -> Iterator[Callable[..., Opened]]:
    opened: list[Opened] = []

    def visit(path: Path, fragment: str = "") -> Opened:
        opened.append(Opened(chromium.new_page()))
        opened[-1].page.goto(path.as_uri() + fragment)
        return opened[-1]

    yield visit
    for one in opened:
        assert one.faults == [], "it asked for something, said something, or failed"
        one.page.close()


@pytest.fixture
def run(make_run: Callable[..., SyntheticRun], store_root: Path) -> SyntheticRun:
    """Two harnesses, a fault, a break, and hostile text wherever a model or a program can put some."""
    (store_root / "vocab").mkdir()
    lines = [json.dumps({"token_id": i, "text": EVIL if i < 500 else f"t{i}"}) for i in range(1000)]
    (store_root / "vocab" / "v1.jsonl").write_text("\n".join(lines) + "\n")
    made = make_run()
    made.rollout(task="fix-mean", reward=1.0)
    evil = made.rollout(task="rename", harness="pi", reward=0.0, text=EVIL)
    call = made.call(
        evil,
        position=6,
        break_reason=f"edited {EVIL}",
        finish_reason=EVIL,
        messages=[
            {"position": 6, "role": EVIL, "text": EVIL * 20, "tool_call_id": EVIL},
            {
                "position": 7,
                "role": "assistant",
                "text": "",
                "reasoning": EVIL,
                "tool_calls": [{"id": "x", "name": EVIL, "arguments": EVIL}],
            },
        ],
    )
    at = {"rollout_id": evil, "attempt": 0}
    made.recorder.append("egress", **at, host=EVIL, port=443, decision="refuse", rule=EVIL)
    made.recorder.append("sample.refused", **at, call_ids=[call], reason=EVIL)
    made.orchestrator.append("grade", **at, reward=0.0, details={EVIL: EVIL})
    made.state(f"{made.run_id}.{'fix-mean'}.codex.0", "error", error_class="sandbox", detail=EVIL)  # type: ignore[arg-type]
    return made


@pytest.fixture
def page_file(run: SyntheticRun, tmp_path: Path) -> Path:
    dest = tmp_path / "page.html"
    assert export(run.store_root, run.run_id, "html", dest).rows == {"page.html": 3}
    return dest


def test_the_list_is_filtered_and_ordered(page_file: Path, visit: Callable[..., Opened]) -> None:
    opened = visit(page_file)
    page = opened.page
    assert opened.rows() == ["fix-mean codex 0", "fix-mean react 0", "rename pi 0"]
    assert "3 rollouts" in page.inner_text("#head")
    assert "running" in page.inner_text("#head"), "the run has not ended"
    page.check("#faults")
    assert opened.rows() == ["fix-mean codex 0", "rename pi 0"]
    page.fill("#filter", "REN pi")
    assert (opened.rows(), page.inner_text("#count")) == (["rename pi 0"], "1 of 3 rollouts")
    page.fill("#filter", "")
    page.uncheck("#faults")
    page.select_option("#by-harness", "react")
    assert opened.rows() == ["fix-mean react 0"]
    page.select_option("#by-harness", "")
    for _ in "up", "down":
        page.click("#rollouts th >> text=reward")
    assert opened.rows() == ["fix-mean react 0", "rename pi 0", "fix-mean codex 0"], "no reward comes last"


def test_keys_go_from_the_list_to_a_turns_tokens_and_back(page_file: Path, visit: Callable[..., Opened]) -> None:
    page = visit(page_file).page
    for key in ("j", "Enter"):
        page.keyboard.press(key)
    assert page.inner_text("h1 >> visible=true").endswith(".fix-mean.react.0")
    assert page.locator(".turn").count() == 3
    for key in ("j", "t"):
        page.keyboard.press(key)
    page.wait_for_selector("text=turn 2 of 3")
    assert page.url.endswith("#r0000000aaa.fix-mean.react.0/2/tokens")
    tokens = page.locator("pre .sampled")
    assert tokens.count() == 30
    tokens.nth(4).hover()
    told = page.inner_text(".readout")
    assert re.search(r"id \d+ · position 134 · probability 0\.\d+ · logprob -0\.\d+ · weights w1", told), told
    page.keyboard.press("n")
    page.wait_for_selector("text=rename.pi.0")
    page.keyboard.press("Escape")
    page.wait_for_selector("#filter")
    page.keyboard.press("/")
    page.keyboard.type("codex")
    assert page.locator("#rollouts tbody tr").count() == 1


def test_what_a_model_wrote_stays_text(run: SyntheticRun, page_file: Path, visit: Callable[..., Opened]) -> None:
    opened = visit(page_file, f"#{run.run_id}.rename.pi.0/4")
    page = opened.page
    for place in (".turn[aria-current]", ".role", "pre.text", "pre.reasoning", "pre.call", ".side p", ".warn"):
        assert SHOWN in "\n".join(page.locator(place).all_text_contents()), place
    page.click(".tabs >> text=tokens")
    page.wait_for_selector(".readout")
    assert SHOWN in page.locator("article pre").inner_text()
    page.locator("pre .sampled").first.hover()
    assert page.locator("main img, main script, main style").count() == 0
    page.goto(f"{page_file.as_uri()}#nobody.{EVIL}")
    assert "is not in this page" in page.inner_text("#missing")
    page.goto(page_file.as_uri())
    assert SHOWN in page.inner_text("#rollouts")


def test_the_page_may_run_nothing_but_its_own_script(page_file: Path, chromium: Browser, tmp_path: Path) -> None:
    """What the policy holds, should a text ever become markup after all."""
    broken = tmp_path / "broken.html"
    attack = '<script>window.hit = 1</script><img src="http://127.0.0.1:9/x" onerror="window.hit = 2">'
    broken.write_text(page_file.read_text().replace("<main id=", f"{attack}<main id=", 1))
    page = chromium.new_page()
    asked: list[str] = []
    page.on("requestfinished", lambda request: asked.append(request.url))
    page.goto(broken.as_uri())
    assert page.locator("#rollouts tbody tr").count() == 3
    assert page.evaluate("window.hit") is None
    assert asked == [broken.as_uri()]
    page.close()


def test_a_permalink_opens_at_its_turn(run: SyntheticRun, page_file: Path, visit: Callable[..., Opened]) -> None:
    page = visit(page_file, f"#{run.run_id}.fix-mean.react.0/3").page
    assert page.inner_text("article .tabs .right") == "turn 3 of 3"
    assert page.inner_text(".turn[aria-current] b") == "3"
    page.click(".back")
    page.wait_for_selector("#filter")


def test_a_fault_has_no_turns_and_says_why(run: SyntheticRun, page_file: Path, visit: Callable[..., Opened]) -> None:
    page = visit(page_file, f"#{run.run_id}.fix-mean.codex.0").page
    assert "sandbox: <script>" in page.inner_text("#rollout-view")
    assert "No model call was recorded" in page.inner_text("article")


def test_a_text_and_its_ids_are_stored_once(make_run: Callable[..., SyntheticRun], tmp_path: Path) -> None:
    made = make_run()
    ids = list(range(900))
    for sample in range(5):
        made.rollout(sample=sample, turns=1, text="a long system prompt " * 50, input_ids=ids)
    export(made.store_root, made.run_id, "html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("a long system prompt " * 50) == 1
    assert page.count("897,898,899") == 1


def test_what_a_page_leaves_out_is_said(
    run: SyntheticRun, tmp_path: Path, visit: Callable[..., Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = export(run.store_root, run.run_id, "html", tmp_path / "two.html", limit=2)
    assert (done.rows, list(done.left_out.values())) == ({"two.html": 2}, [1])
    opened = visit(tmp_path / "two.html")
    assert opened.rows() == ["fix-mean codex 0", "rename pi 0"], "the worst stay"
    assert "3 rollouts · 2 with a reward" in opened.page.inner_text("#head"), "the facts are those of the whole run"
    assert "2 of 3 rollouts" in opened.page.inner_text("#left-out")
    assert f"openforge export {run.run_id} --html --limit 0" in opened.page.inner_text("#left-out")

    monkeypatch.setattr(build, "SIZE_BYTES", 100)
    small = export(run.store_root, run.run_id, "html", tmp_path / "small.html")
    assert (small.rows, list(small.left_out.values())) == ({"small.html": 1}, [2])
    for limit in (0, 9):
        assert export(run.store_root, run.run_id, "html", tmp_path / "all.html", limit=limit).left_out == {}


def test_wrong_use_is_told(run: SyntheticRun, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="one whole run"):
        export(run.store_root, None, "html", tmp_path / "a.html")
    with pytest.raises(UsageError, match="html format only"):
        export(run.store_root, run.run_id, "jsonl", tmp_path / "a.jsonl", limit=1)
    with pytest.raises(UsageError, match="one run"):
        export(run.store_root, "r9", "html", tmp_path / "a.html")
    (tmp_path / "file").touch()
    with pytest.raises(InfraError, match="cannot be written"):
        export(run.store_root, run.run_id, "html", tmp_path / "file" / "a.html")
    assert not list(tmp_path.glob("*.html"))


def test_a_page_of_a_thousand_rollouts_stays_quick(
    make_run: Callable[..., SyntheticRun], tmp_path: Path, visit: Callable[..., Opened]
) -> None:
    made = make_run()
    for sample in range(1000):
        made.rollout(task=f"t{sample % 20}", sample=sample, turns=2, reward=sample % 2)
    began = time.monotonic()
    export(made.store_root, made.run_id, "html", tmp_path / "page.html")
    built = time.monotonic()
    opened = visit(tmp_path / "page.html")
    loaded = time.monotonic()
    opened.page.fill("#filter", "t7")
    assert len(opened.rows()) == 50
    opened.page.keyboard.press("Escape")
    opened.page.keyboard.press("Enter")
    opened.page.wait_for_selector("article")
    done = time.monotonic()
    assert built - began < 10
    assert loaded - built < 3
    assert done - loaded < 3
    print(built - began, loaded - built, done - loaded)


def test_images_that_were_sent_are_in_the_page(
    make_run: Callable[..., SyntheticRun], tmp_path: Path, visit: Callable[..., Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large = encoded("PNG", (64, 48)), encoded("PNG", (640, 480))
    monkeypatch.setattr(build, "IMAGE_BYTES", len(large) - 1)
    urls = [f"data:image/png;base64,{b64(data)}" for data in (small, large, b"no image")]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in [*urls, f"https://{EVIL}"]]
    run = make_run()
    rollout = run.rollout(task="look", turns=1)
    call = run.unread_call(rollout, [{"role": "user", "content": [{"type": "text", "text": EVIL}, *parts]}])
    dest = tmp_path / "page.html"
    export(run.store_root, run.run_id, "html", dest)
    page = visit(dest, f"#{rollout}/2").page
    assert call in page.inner_text("article")
    assert "not read by the recorder: no token ids, never trained" in page.inner_text("article")
    assert page.locator(".role").all_inner_texts() == ["user", "assistant"]
    lines = page.locator(".image").all_inner_texts()
    assert lines[0].startswith("[image 1: image/png 64x48, ")
    assert lines[1].startswith("[image 2: image/png 640x480, ")
    assert [line.endswith("] not included") for line in lines] == [False, True, True, True]
    page.evaluate("document.images[0].decode()")
    assert page.evaluate("[...document.images].map((one) => [one.naturalWidth, one.naturalHeight])") == [[64, 48]]
