"""Record mode: bytes pass through untouched, are kept, and become ids when a tokenizer is at hand."""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from recorder_desk import ROLLOUT, TOKEN, Desk

from openforge.store.asked import read_asked
from openforge.tokens.message import Message, ToolCall
from proxy_addons.dialects import DIALECTS
from proxy_addons.dialects.base import Answer, Request

CHAT, RESPONSES = DIALECTS
BODY = b'{"model": "gpt",  "stream":true, "messages":[{"role":"user","content":"hi"}],"odd":1.0}'
ASKED = Request((), (), True, "gpt", None, {}, 1)
CALL = Message("assistant", "", tool_calls=(ToolCall("call_x", "bash", '{"cmd": "ls"}'),))


class Upstream:
    """A provider: `answer` writes what it says."""

    def __init__(self) -> None:
        self.seen: list[tuple[dict[str, str], bytes, str]] = []
        self.answer: Callable[[web.Request], Any] = self.plain
        self.url = ""

    async def plain(self, request: web.Request) -> web.StreamResponse:
        return web.Response(body=CHAT.write_stream(Answer(CALL, "tool_calls", 7, 3), ASKED, "c1"),
                            content_type="text/event-stream")  # fmt: skip

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((dict(request.headers), await request.read(), request.path))
        return await self.answer(request)  # type: ignore[no-any-return]


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    upstream = Upstream()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", upstream.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    upstream.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield upstream
    await runner.cleanup()


@pytest.fixture
async def recording(make_desk: Any, upstream: Upstream) -> Desk:
    engine = {"kind": "openai", "url": upstream.url, "model": "gpt", "api_key": "sk-real"}
    desk: Desk = await make_desk(mode="record", engine=engine)
    await desk.register()
    return desk


async def send(desk: Desk, body: bytes = BODY, path: str = "/v1/chat/completions") -> tuple[int, bytes]:
    headers = {"authorization": f"Bearer {TOKEN}", "x-openforge-host": "forged", "x-mine": "kept"}
    async with desk.http.post(f"{desk.site}/r/{TOKEN}{path}", data=body, headers=headers) as answer:
        return answer.status, await answer.read()


async def test_bytes_pass_through_untouched_but_for_who_asks(recording: Desk, upstream: Upstream) -> None:
    status, body = await send(recording)
    assert status == 200
    assert body == CHAT.write_stream(Answer(CALL, "tool_calls", 7, 3), ASKED, "c1")
    [(headers, sent, path)] = upstream.seen
    assert sent == BODY
    assert path == "/v1/chat/completions"
    headers = {key.lower(): value for key, value in headers.items()}
    assert headers["authorization"] == "Bearer sk-real"
    assert headers["x-session-id"] == ROLLOUT
    assert headers["x-mine"] == "kept"
    assert not [key for key in headers if key.startswith("x-openforge")]
    assert TOKEN not in str(headers)


async def test_ids_of_a_recorded_answer_are_those_the_policy_would_have_sampled(recording: Desk) -> None:
    await send(recording)
    [record] = recording.records("call.close")
    tok = recording.engine.tokenizer
    text = tok.decode(record["completion_ids"], skip_special_tokens=False)
    assert text == '<tool_call>\n{"name": "bash", "arguments": {"cmd": "ls"}}\n</tool_call><|im_end|>'
    assert record.get("logprobs") is None
    assert record.get("weight_version_min") is None
    assert (record["prompt_tokens"], record["completion_tokens"]) == (7, 3)
    second = orjson.loads(BODY)
    second["messages"] += [
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_x", "type": "function", "function": {"name": "bash", "arguments": '{"cmd":"ls"}'}}]},
        {"role": "tool", "tool_call_id": "call_x", "content": "a.txt"},
    ]  # fmt: skip
    await send(recording, orjson.dumps(second))
    sealed = await recording.seal()
    assert sealed["breaks"] == {"root": 1, "append": 1}
    [row] = recording.records("sample")
    assert row["logprobs"] is None
    assert sum(row["loss_mask"]) == 2 * len(record["completion_ids"])


async def test_a_call_of_a_tool_that_was_not_offered_is_counted(recording: Desk) -> None:
    offered = {**orjson.loads(BODY), "tools": [{"type": "function", "function": {"name": "bash"}}]}
    for body in (offered, orjson.loads(BODY)):
        assert (await recording.post(body))[0] == 200
    sealed = await recording.seal()
    assert (sealed["calls"], sealed["invalid_calls"]) == (2, 1)


async def test_w01_the_last_event_waits_for_the_record(recording: Desk, upstream: Upstream) -> None:
    gate = asyncio.Event()
    stream = RESPONSES.write_stream(Answer(Message("assistant", "hello"), "stop", 1, 1), ASKED, "c1")

    async def slow(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for at in range(0, len(stream), 37):  # chunks know nothing of events
            await response.write(stream[at : at + 37])
            await asyncio.sleep(0)
        await gate.wait()
        return response

    upstream.answer = slow
    seen = b""
    url = f"{recording.site}/r/{TOKEN}/v1/responses"
    async with recording.http.post(url, data=b'{"stream":true,"input":"hi","model":"gpt"}') as answer:
        while b"response.output_item.done" not in seen:
            seen += await answer.content.readany()
        assert b"response.completed" not in seen
        assert recording.records("call.close") == []
        gate.set()
        while b"response.completed" not in seen:
            seen += await answer.content.readany()
        assert len(recording.records("call.close")) == 1
        seen += await answer.content.read()
    assert seen == stream


@pytest.mark.parametrize("how", ["clean end", "reset"])
async def test_a_broken_stream_is_never_a_clean_end(recording: Desk, upstream: Upstream, how: str) -> None:
    stream = CHAT.write_stream(Answer(CALL, "tool_calls"), ASKED, "c1")

    async def broken(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(stream[: stream.index(b"finish_reason", 600)])
        if how == "reset":
            assert request.transport
            request.transport.abort()
        return response

    upstream.answer = broken
    with pytest.raises(aiohttp.ClientError):
        await send(recording)
    [record] = recording.records("call.abort")
    assert record["error_class"] == "incomplete_answer"
    assert recording.records("call.close") == []
    assert (await recording.seal())["samples"] == []


async def test_a_providers_refusal_is_passed_on_as_it_is(recording: Desk, upstream: Upstream) -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.Response(status=429, text='{"error": "slow down"}', headers={"retry-after": "7"})

    upstream.answer = refuse
    async with recording.http.post(f"{recording.site}/r/{TOKEN}/v1/chat/completions", data=BODY) as answer:
        assert (answer.status, answer.headers["retry-after"]) == (429, "7")
        assert await answer.text() == '{"error": "slow down"}'
    [record] = recording.records("call.abort")
    assert (record["error_class"], record["status"]) == ("provider_status", 429)


async def test_what_our_dialect_cannot_read_is_still_the_providers_to_answer(
    recording: Desk, upstream: Upstream
) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    body = orjson.dumps({"stream": True, "messages": [{"role": "user", "content": [image]}]})
    status, _ = await send(recording, body)
    assert status == 200
    assert upstream.seen[0][1] == body
    [record] = recording.records("call.close")
    assert record["request"] == orjson.loads(body), "nothing else tells what was asked"
    assert [message["role"] for message in record["messages"]] == ["assistant"]
    assert record.get("input_ids") is None
    assert (await recording.status())["unread"] == 1
    assert (await recording.seal())["samples"] == []


async def test_an_image_that_comes_back_on_each_call_is_stored_once(recording: Desk) -> None:
    url = f"data:image/png;base64,{'A' * 5000}"
    shot: Any = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
    for said in ([], [{"role": "assistant", "content": "a desk"}, {"role": "user", "content": "and now?"}]):
        await send(recording, orjson.dumps({"stream": True, "messages": [shot, *said]}))
    first, second = (record["request"]["messages"] for record in recording.records("call.close"))
    assert second[0] == first[0] == {"$blob": first[0]["$blob"]}
    assert second[1:] == said
    assert orjson.loads(next(iter(recording.records("blob")))["data"]) == shot


async def test_what_was_asked_with_an_image_is_read_back_turn_by_turn(recording: Desk) -> None:
    shots = [base64.b64encode(bytes([number]) * 3000).decode() for number in range(3)]
    history: list[Any] = [{"role": "system", "content": "look"}]
    for shot in shots:
        url = {"url": f"data:image/png;base64,{shot}"}
        content = [{"type": "text", "text": "and now?"}, {"type": "image_url", "image_url": url}]
        history.append({"role": "user", "content": content})
        await send(recording, orjson.dumps({"stream": True, "messages": history}))
        history.append({"role": "assistant", "content": "done"})
    recording.journal.sync()
    calls = [record["call_id"] for record in recording.records("call.close")]
    asked = read_asked(recording.run_dir.parent.parent, ROLLOUT, 0, calls)
    assert [[said.role for said in asked[call]] for call in calls] == [["system", "user"], ["user"], ["user"]]
    assert [asked[call][-1].position for call in calls] == [1, 3, 5]
    read = [image.data for call in calls for said in asked[call] for image in said.images]
    assert read == [base64.b64decode(shot) for shot in shots]


@pytest.mark.parametrize(
    "body", [b"no JSON", b"[1]", b'{"messages": 7}', b'{"messages": [' + b"[" * 300 + b"]" * 300 + b"]}"]
)
async def test_a_body_of_any_form_is_kept(recording: Desk, body: bytes) -> None:
    assert (await send(recording, body))[0] == 200
    [record] = recording.records("call.close")
    assert record["request"] in (body.decode(), {"messages": 7})


def saying(answer: Answer) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """A provider that gives this answer."""

    async def reply(_: web.Request) -> web.StreamResponse:
        return web.Response(body=CHAT.write_answer(answer, ASKED, "c1"), content_type="application/json")

    return reply


async def test_w07_usage_that_nobody_told_is_null(recording: Desk, upstream: Upstream) -> None:
    upstream.answer = saying(Answer(Message("assistant", "x"), "stop"))
    await send(recording)
    [record] = recording.records("call.close")
    assert record["prompt_tokens"] is None
    assert record["completion_tokens"] is None


async def test_w25_a_refusal_keeps_its_own_class(recording: Desk, upstream: Upstream) -> None:
    upstream.answer = saying(Answer(Message("assistant", "I will not"), "refusal"))
    await send(recording)
    [record] = recording.records("call.close")
    assert record["finish_reason"] == "refusal"


async def test_a_provider_that_is_away_is_503(make_desk: Any) -> None:
    engine = {"kind": "openai", "url": "http://127.0.0.1:1/v1", "model": "gpt"}
    desk: Desk = await make_desk(mode="record", engine=engine)
    await desk.register()
    status, body = await send(desk)
    assert (status, orjson.loads(body)["error"]["code"]) == (503, "provider_unreachable")


async def test_a_seal_ends_a_stream_that_is_passing_through(recording: Desk, upstream: Upstream) -> None:
    started = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"choices":[]}\n\n')
        started.set()
        await asyncio.Event().wait()
        return response

    upstream.answer = endless
    call = asyncio.create_task(send(recording))
    await started.wait()
    assert (await recording.seal())["calls"] == 0
    with pytest.raises(aiohttp.ClientError):
        await call
    assert [record["error_class"] for record in recording.records("call.abort")] == ["sealed"]


async def test_without_a_tokenizer_there_are_records_and_no_ids(make_desk: Any, upstream: Upstream) -> None:
    engine = {"kind": "openai", "url": upstream.url, "model": "gpt"}
    desk: Desk = await make_desk(with_renderer=False, mode="record", engine=engine)
    await desk.register()
    await send(desk)
    [record] = desk.records("call.close")
    assert record.get("completion_ids") is None
    assert record["finish_reason"] == "tool_calls"
    sealed = await desk.seal()
    assert (sealed["calls"], sealed["samples"], sealed["refused"]) == (1, [], [])
