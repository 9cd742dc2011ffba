"""The harness's face: who may call, keep-alives, clients that leave, limits, the seal, a broken disk."""

import asyncio
import os
import resource
import time
from asyncio import StreamReader, StreamWriter
from typing import Any

import aiohttp
import pytest
from recorder_desk import ROLLOUT, TOKEN, Desk, until

HI = [{"role": "user", "content": "hi"}]
CHAT = {"model": "m", "messages": HI}


async def asked_engine(desk: Desk, count: int = 1) -> None:
    await until(lambda: len(desk.engine.requests) >= count)


async def journalled(desk: Desk, kind: str) -> dict[str, Any]:
    return dict((await until(lambda: desk.records(kind)))[0])


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/v1/chat/completions", "/chat/completions"])
async def test_w26_a_base_url_with_and_without_v1(desk: Desk, path: str) -> None:
    assert (await desk.post(CHAT, path=path))[0] == 200


async def test_w17_a_websocket_is_refused_at_once(desk: Desk) -> None:
    headers = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-key": "x", "sec-websocket-version": "13"}
    async with desk.http.get(f"{desk.site}/r/{TOKEN}/v1/responses", headers=headers) as answer:
        assert answer.status == 426


@pytest.mark.parametrize(
    "headers",
    [{"authorization": f"Bearer {TOKEN}"}, {"x-api-key": TOKEN}, {"x-goog-api-key": TOKEN}, {"api-key": TOKEN}],
)
async def test_the_api_key_says_who_calls(desk: Desk, headers: dict[str, str]) -> None:
    async with desk.http.post(f"{desk.site}/v1/chat/completions", json=CHAT, headers=headers) as answer:
        assert answer.status == 200


async def test_s08_a_call_of_nobody_is_a_clear_401(desk: Desk) -> None:
    forged = {"x-openforge-token": TOKEN, "x-openforge-relay": "guess"}
    for url, headers in (
        (f"{desk.site}/r/wrong/v1/chat/completions", {}),
        (f"{desk.site}/v1/chat/completions", forged),
    ):
        async with desk.http.post(url, json=CHAT, headers=headers) as answer:
            assert answer.status == 401
            assert (await answer.json())["error"]["code"] == "unknown_rollout"
    assert [record["error_class"] for record in desk.records("call.refused")] == ["unknown_rollout"] * 2
    assert not desk.engine.requests


async def test_side_requests_get_an_answer_that_harnesses_survive(desk: Desk) -> None:
    async with desk.http.get(f"{desk.site}/r/{TOKEN}/v1/models") as answer:
        assert (await answer.json())["data"][0]["id"] == "policy"
    for method, path in (("HEAD", "/"), ("GET", "/v1/chat/completions"), ("POST", "/v1/embeddings")):
        async with desk.http.request(method, f"{desk.site}/r/{TOKEN}{path}") as answer:
            assert answer.status == 404


GARBAGE = [
    *(b"", b"{", b"[]", b"null", b'{"messages": 5}', b'{"messages": []}', b'{"messages": [null]}', b"\xff\xfe"),
    b"[" * 100_000,
    b'{"messages": [{"role": "user", "content": ' + b'{"a":' * 600 + b"1" + b"}" * 602,
]


@pytest.mark.parametrize("body", GARBAGE, ids=range(len(GARBAGE)))
async def test_garbage_is_a_400_in_the_dialects_own_words(desk: Desk, body: bytes) -> None:
    for path in ("/v1/chat/completions", "/v1/responses"):
        async with desk.http.post(f"{desk.site}/r/{TOKEN}{path}", data=body) as answer:
            assert answer.status == 400
            error = (await answer.json(content_type=None))["error"]
            assert error["type"] == "invalid_request_error"
            assert error["message"]
    assert (await desk.status())["calls"] == []
    assert (await desk.post(CHAT))[0] == 200


async def test_v05_an_image_for_a_policy_that_reads_text_is_refused_by_name_and_on_record(desk: Desk) -> None:
    url = {"url": "https://example.com/x.png"}
    content = [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": url}]
    status, told = await desk.post({"model": "m", "messages": [{"role": "user", "content": content}]})
    assert (status, told["error"]["code"]) == (400, "unsupported_content")
    [record] = desk.records("call.refused")
    assert (record["rollout_id"], record["error_class"]) == (ROLLOUT, "unsupported_content")
    assert record["detail"] == "messages[0].content[1] is 'image_url': this model reads text only"
    assert (await desk.seal())["refused_calls"] == 1


async def test_a_body_that_could_not_be_stored_is_refused(desk: Desk) -> None:
    deep = '{"a":' * 300 + "1" + "}" * 300
    body = '{"messages": [{"role": "user", "content": "x"}], "metadata": ' + deep + "}"
    async with desk.http.post(f"{desk.site}/r/{TOKEN}/v1/chat/completions", data=body) as answer:
        assert answer.status == 400


async def test_s16_a_large_tool_result_is_taken_and_a_larger_body_refused(make_desk: Any) -> None:
    desk: Desk = await make_desk(max_body_bytes=64 << 20, max_model_len=1 << 24)
    await desk.register()
    assert (await desk.post({"messages": [{"role": "user", "content": "ab " * 700_000}]}))[0] == 200
    async with desk.http.post(f"{desk.site}/r/{TOKEN}/v1/responses", data=b" " * ((64 << 20) + 1)) as answer:
        assert answer.status == 413
        assert (await answer.json(content_type=None))["error"]["code"] == "request_too_large"


async def send_slowly(desk: Desk, token: str, declared: int, sent: bytes = b"") -> tuple[StreamReader, StreamWriter]:
    """A request whose body does not come to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(desk.site.rpartition(":")[2]))
    head = f"POST /r/{token}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {declared}\r\n\r\n"
    writer.write(head.encode() + sent)
    await writer.drain()
    return reader, writer


@pytest.mark.parametrize("why", ["limit_calls", "limit_time", "sealed", "dropped", "request_too_large"])
async def test_a_call_that_may_not_be_made_is_refused_before_its_body_is_read(desk: Desk, why: str) -> None:
    await desk.register("r1.t.h.1", "a" * 24, max_calls=1, deadline_s=0.001 if why == "limit_time" else 60)
    if why == "limit_calls":
        assert (await desk.post(CHAT, token="a" * 24))[0] == 200
    elif why == "sealed":
        await desk.seal("r1.t.h.1")
    elif why == "dropped":
        await desk.control("DELETE", "/rollouts/r1.t.h.1")
    reader, writer = await send_slowly(desk, "a" * 24, 1 << 40 if why == "request_too_large" else 1000)
    async with asyncio.timeout(5):
        assert f'"{why}"'.encode() in await reader.readuntil(b"}")
    writer.close()
    assert desk.records("call.refused")[-1]["error_class"] == why
    assert (await desk.control("GET", "/rollouts/r1.t.h.1"))[1]["refused"] == 1


async def test_unfinished_bodies_of_one_rollout_cannot_fill_the_memory(make_desk: Any) -> None:
    desk: Desk = await make_desk(max_body_bytes=64 << 20)
    await desk.register()
    rollout = desk.parts.registry.get(ROLLOUT)
    part = b" " * (40 << 20)
    first, open_end = await send_slowly(desk, TOKEN, len(part) + 2, part)
    await until(lambda: rollout.body_bytes == len(part))
    async with desk.http.post(f"{desk.site}/r/{TOKEN}/v1/chat/completions", data=part) as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (429, "too_much_at_once")
        assert answer.headers["retry-after"] == "1"
    open_end.write(b"{}")
    assert b" 400 " in await first.readline()
    open_end.close()
    await until(lambda: rollout.body_bytes == 0)
    assert (await desk.post(CHAT))[0] == 200


async def test_a_body_that_never_ends_is_given_up_when_its_rollout_ends(desk: Desk) -> None:
    await desk.register("r1.t.h.1", "a" * 24, deadline_s=0.2)
    reader, writer = await send_slowly(desk, "a" * 24, 1000, b"{")
    async with asyncio.timeout(5):
        assert b'"limit_time"' in await reader.readuntil(b"}")
    writer.close()
    assert desk.parts.registry.get("r1.t.h.1").body_bytes == 0


async def test_w28_a_stream_is_kept_alive_while_the_policy_thinks(make_desk: Any) -> None:
    desk: Desk = await make_desk(keep_alive_s=0.02)
    await desk.register()
    desk.engine.hold = asyncio.Event()
    async with desk.http.post(f"{desk.site}/r/{TOKEN}/v1/chat/completions", json={**CHAT, "stream": True}) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        first = await answer.content.readuntil(b"\n\n")
        second = await answer.content.readuntil(b"\n\n")
        desk.engine.hold.set()
        rest = await answer.content.read()
    assert first == second == b": keep-alive\n\n"
    assert b'"content":"done"' in rest
    assert rest.endswith(b"data: [DONE]\n\n")


async def test_a_stream_that_fails_after_a_keep_alive_is_cut_not_ended(make_desk: Any) -> None:
    desk: Desk = await make_desk(keep_alive_s=0.02)
    await desk.register()
    desk.engine.hold = asyncio.Event()
    desk.engine.fail("500")
    async with desk.http.post(f"{desk.site}/r/{TOKEN}/v1/chat/completions", json={**CHAT, "stream": True}) as answer:
        await answer.content.readuntil(b"\n\n")
        desk.engine.hold.set()
        with pytest.raises(aiohttp.ClientError):
            await answer.content.read()
    assert (await journalled(desk, "call.abort"))["error_class"] == "engine_unavailable"


async def test_w01_the_record_is_there_before_the_answer_is(desk: Desk) -> None:
    """A client that leaves at the last event finds its turn committed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(desk.site.rpartition(":")[2]))
    body = b'{"model":"m","stream":true,"input":"hi"}'
    head = f"POST /r/{TOKEN}/v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    seen = b""
    while b"response.completed" not in seen:
        seen += await reader.read(100)
    writer.transport.abort()
    assert len(desk.records("call.close")) == 1
    assert (await desk.seal())["calls"] == 1


async def test_a_client_that_leaves_cancels_the_engine(desk: Desk) -> None:
    desk.engine.hold = asyncio.Event()
    for count, stream in enumerate((True, False), start=1):
        task = asyncio.create_task(desk.post({**CHAT, "stream": stream}))
        await asked_engine(desk, count)
        task.cancel()
    await until(lambda: desk.engine.cancelled == 2)
    assert (await journalled(desk, "call.abort"))["error_class"] == "client_gone"
    assert (await desk.status())["calls"] == []
    assert (await desk.seal())["samples"] == []


@pytest.mark.parametrize("method", ["seal", "drop"])
async def test_s04_s22_the_end_of_a_rollout_does_not_wait_for_its_calls(desk: Desk, method: str) -> None:
    desk.engine.hold = asyncio.Event()
    call = asyncio.create_task(desk.post(CHAT))
    await asked_engine(desk)
    before = time.monotonic()
    if method == "seal":
        assert (await desk.seal())["calls"] == 0
    else:
        assert (await desk.control("DELETE", f"/rollouts/{ROLLOUT}"))[0] == 200
    assert time.monotonic() - before < 1
    status, told = await call
    state = "sealed" if method == "seal" else "dropped"
    assert (status, told["error"]["code"]) == (410, state)
    desk.engine.hold.set()
    assert (await journalled(desk, "call.abort"))["error_class"] == state
    assert (await desk.post(CHAT))[0] == 410
    assert (await journalled(desk, "call.refused"))["error_class"] == state
    assert desk.records("call.close", "sample") == []


async def test_s22_an_answer_after_the_seal_is_not_kept(desk: Desk) -> None:
    """Even when the engine's answer is there already: the state is asked again at the commit."""
    rollout = desk.parts.registry.get(ROLLOUT)
    train: Any = desk.parts.site._answering
    read = train._read

    def seal_then_read(*args: Any) -> Any:
        rollout.state = type(rollout.state)("sealed")
        return read(*args)

    train._read = seal_then_read
    assert (await desk.post(CHAT))[0] == 410
    assert desk.records("call.close") == []
    assert rollout.graph.turns == []


async def test_sealing_is_idempotent_and_knows_the_attempt(desk: Desk) -> None:
    await desk.chat(HI)
    first = await desk.seal()
    assert await desk.seal() == first
    assert len(desk.records("sample")) == 1
    assert (await desk.control("POST", f"/rollouts/{ROLLOUT}/seal", {"attempt": 1}))[0] == 409
    assert await desk.register() == 201  # the same attempt again changes nothing
    assert (await desk.control("GET", f"/rollouts/{ROLLOUT}"))[1]["state"] == "sealed"


async def test_a_new_attempt_drops_the_old_one(desk: Desk) -> None:
    await desk.chat(HI)
    assert await desk.register(token=TOKEN, attempt=1) == 409  # each attempt has its own token
    assert await desk.register(token="u" * 24, attempt=1) == 201
    assert (await desk.post(CHAT))[0] == 410
    assert (await desk.post(CHAT, token="u" * 24))[0] == 200
    assert await desk.register() == 409
    assert (await desk.seal(attempt=1))["calls"] == 1
    assert [record["attempt"] for record in desk.records("call.close")] == [0, 1]
    assert len(desk.records("sample")) == 1


async def test_limits_of_a_rollout(desk: Desk) -> None:
    await desk.register("r1.t.h.1", "a" * 24, max_calls=1)
    await desk.register("r1.t.h.2", "b" * 24, max_tokens=30)
    await desk.register("r1.t.h.3", "c" * 24, deadline_s=0.001)
    assert (await desk.post(CHAT, token="a" * 24))[0] == 200
    codes = []
    desk.engine.say("word " * 90)
    assert (await desk.post(CHAT, token="b" * 24))[1]["choices"][0]["finish_reason"] == "length"
    for token in "abc":
        status, told = await desk.post(CHAT, token=token * 24)
        codes.append((status, told["error"]["code"]))
    assert codes == [(403, "limit_calls"), (403, "limit_tokens"), (403, "limit_time")]
    told = (await desk.control("GET", "/rollouts/r1.t.h.2"))[1]
    assert told["tokens"] == 30


async def test_s19_the_deadline_ends_a_call_under_way(desk: Desk) -> None:
    await desk.register("r1.t.h.1", "a" * 24, deadline_s=0.3)
    desk.engine.hold = asyncio.Event()
    status, told = await desk.post(CHAT, token="a" * 24)
    assert (status, told["error"]["code"]) == (403, "limit_time")
    assert (await journalled(desk, "call.abort"))["error_class"] == "limit_time"


async def test_64_rollouts_at_once_each_get_their_own_path(desk: Desk) -> None:
    async def rollout(number: int) -> None:
        token, name = f"{number:024d}", f"r1.t.h.{number}"
        await desk.register(name, token)
        messages: list[dict[str, Any]] = [{"role": "user", "content": f"rollout {number}"}]
        for turn in range(4):
            said = (await desk.chat(messages, token=token))["message"]
            messages += [said, {"role": "user", "content": f"{number} again {turn}"}]
        sealed = await desk.seal(name)
        assert sealed["breaks"] == {"root": 1, "append": 3}
        assert len(sealed["samples"]) == 1

    async with asyncio.timeout(60):
        await asyncio.gather(*(rollout(number) for number in range(64)))
    by_rollout: dict[str, list[dict[str, Any]]] = {}
    for record in desk.records("call.close"):
        by_rollout.setdefault(record["rollout_id"], []).append(record)
    tok = desk.engine.tokenizer
    for name, closes in by_rollout.items():
        text = tok.decode([token for close in closes for token in close["input_ids"]], skip_special_tokens=False)
        assert f"rollout {name.rpartition('.')[2]}<" in text
    assert len(by_rollout) == 64
    assert (await desk.status())["full_renders"] == 64


async def test_s05_the_control_face_answers_while_prompts_are_rendered(desk: Desk) -> None:
    await desk.register("r1.t.h.1", "a" * 24)
    big = [{"role": "user", "content": "many words here " * 30_000}]
    tasks = [asyncio.create_task(desk.post({"messages": big}, token="a" * 24)) for _ in range(3)]
    slowest = 0.0
    while not all(task.done() for task in tasks):
        before = time.monotonic()
        async with desk.http.get(f"{desk.admin}/healthz") as answer:
            assert answer.status == 200
        slowest = max(slowest, time.monotonic() - before)
        await asyncio.sleep(0.005)
    assert slowest < 1  # a render of 90,000 tokens takes seconds; benchmarks/recorder.py has the real goal


async def test_a_full_disk_stops_admission_loudly(desk: Desk) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    used = os.fstat(desk.journal._fd).st_size
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (used + 900, hard)
    )  # the kernel then refuses the write (SIGXFSZ is ignored)
    try:
        status, told = await desk.post({"messages": [{"role": "user", "content": "x" * 1500}]})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (status, told["error"]["code"]) == (503, "recorder_broken")
    async with desk.http.get(f"{desk.admin}/healthz") as answer:
        assert answer.status == 503
        assert "could not write" in (await answer.json())["reason"]
    assert (await desk.post(CHAT))[0] == 503
    assert (await desk.control("PUT", "/rollouts/r1.t.h.9", {"token": "z" * 24}))[0] == 503
    assert desk.records("call.close") == []


async def test_header_bytes_that_are_no_text_are_a_wrong_secret_and_not_a_crash(desk: Desk) -> None:
    for address, header, path in (
        (desk.site, b"x-openforge-relay: \xff", "/v1/chat/completions"),
        (desk.site, b"authorization: Bearer \xff", "/v1/chat/completions"),
        (desk.admin, b"authorization: Bearer \xff", "/status"),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
        writer.write(b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n%s\r\n\r\n" % (path.encode(), header))
        assert b" 401 " in await reader.readline()
        writer.close()


async def test_the_control_face_needs_its_secret(desk: Desk) -> None:
    for headers in ({}, {"authorization": f"Bearer {TOKEN}"}):
        async with desk.http.get(f"{desk.admin}/status", headers=headers) as answer:
            assert answer.status == 401
    assert (await desk.control("PUT", "/rollouts/x", {"token": "short"}))[0] == 400
    assert (await desk.control("PUT", "/rollouts/x", {"token": TOKEN, "typo": 1}))[0] == 400
    assert (await desk.control("GET", "/rollouts/nobody"))[0] == 404


async def test_s02_a_thousand_rollouts_leave_nothing_behind(desk: Desk) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(1000):
        await desk.register(f"r1.t.h.{number + 1}", f"{number:024d}")
        await desk.seal(f"r1.t.h.{number + 1}")
    assert abs(len(os.listdir("/proc/self/fd")) - before) <= 3
