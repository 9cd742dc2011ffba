"""Both streams as the official SDK parses them: what a harness built on it will see."""

from typing import Any

import httpx
import openai
import pytest
from wire_samples import ANSWERS, CHAT, RESPONSES, RESPONSES_REQUEST, TEXT

from proxy_addons.dialects.base import Answer, Dialect


def sdk(dialect: Dialect, answer: Answer) -> openai.AsyncOpenAI:
    def handle(request: httpx.Request) -> httpx.Response:
        asked = dialect.read_request(request.content)
        body = (dialect.write_stream if asked.stream else dialect.write_answer)(answer, asked, "c1")
        return httpx.Response(
            200, content=body, headers={"content-type": "text/event-stream" if asked.stream else "application/json"}
        )

    client = httpx.AsyncClient(transport=httpx.MockTransport(handle))
    return openai.AsyncOpenAI(base_url="http://policy/v1", api_key="x", http_client=client)


@pytest.mark.parametrize("name", ANSWERS)
async def test_w08_w22_the_official_sdk_reads_a_chat_stream(name: str) -> None:
    answer = ANSWERS[name]
    async with sdk(CHAT, answer).chat.completions.stream(
        model="m", messages=[{"role": "user", "content": "x"}], stream_options={"include_usage": True}
    ) as stream:
        try:
            final = await stream.get_final_completion()
        except openai.LengthFinishReasonError:
            assert answer.finish == "length"
            return
    message = final.choices[0].message
    assert (message.content or message.refusal or "") == answer.message.text
    calls = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or []]
    assert calls == [(call.id, call.name, call.arguments) for call in answer.message.tool_calls]
    assert final.choices[0].finish_reason == ("stop" if answer.finish == "refusal" else answer.finish)
    assert final.usage
    assert final.usage.total_tokens == 14


@pytest.mark.parametrize("name", ANSWERS)
async def test_w08_w22_the_official_sdk_reads_a_responses_stream(name: str) -> None:
    answer = ANSWERS[name]
    tools: Any = RESPONSES_REQUEST["tools"]
    seen: list[str] = []
    client = sdk(RESPONSES, answer)
    stream = await client.responses.create(model="m", input="x", tools=tools, stream=True)
    async for event in stream:
        seen.append(event.type)
        final = getattr(event, "response", None)
    assert seen[0] == "response.created"
    assert seen[-1] == ("response.incomplete" if answer.finish == "length" else "response.completed")
    assert final
    assert final.usage
    assert final.usage.total_tokens == 14
    calls = [item for item in final.output if item.type in ("function_call", "custom_tool_call")]
    assert [item.name for item in calls] == [call.name.rpartition(".")[2] for call in answer.message.tool_calls]
    if name == "calls":
        assert (calls[1].namespace, calls[2].input) == ("files", "*** Begin\n")  # type: ignore[union-attr]
    if name != "refusal":
        assert final.output_text == answer.message.text
    plain: Any = [tool for tool in tools if tool["type"] == "function"]
    async with client.responses.stream(model="m", input="x", tools=plain) as helper:  # the accumulating reader
        async for _ in helper:
            pass


async def test_w08_the_official_sdk_reads_plain_json() -> None:
    chat = await sdk(CHAT, TEXT).chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
    assert chat.choices[0].message.content == "hé 你\n"
    response = await sdk(RESPONSES, TEXT).responses.create(model="m", input="x")
    assert response.output_text == "hé 你\n"
