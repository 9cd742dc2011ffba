"""Train mode: a request becomes ids, the policy samples, the answer is committed, then it may be sent.

The sampling parameters are the run's. Nothing is cut: a prompt that does not fit is the harness's to know, in its own
dialect and without asking the engine.
"""

from dataclasses import replace

from openforge.tokens.message import Message
from proxy_addons.dialects.base import Answer, Dialect, Finish, Request, WireError
from proxy_addons.engines.base import Engine, Generation
from proxy_addons.ledger import Ledger, overridden
from proxy_addons.prompts import Prompt, Prompts
from proxy_addons.render.base import Renderer
from proxy_addons.rollouts import Call, Rollout
from proxy_addons.settings import RecorderConfig
from proxy_addons.side_calls import is_side_call
from proxy_addons.tool_calls import count_invalid


class Train:
    """Answers calls from the policy."""

    def __init__(
        self, config: RecorderConfig, renderer: Renderer, prompts: Prompts, engine: Engine, ledger: Ledger
    ) -> None:
        self._sampling = config.sampling
        self.max_model_len = config.max_model_len
        self._renderer = renderer
        self._prompts = prompts
        self._engine = engine
        self._ledger = ledger
        self.malformed = 0

    async def answer(self, rollout: Rollout, call: Call, dialect: Dialect, request: Request, body: bytes) -> bytes:
        """The wire answer, committed. Raises WireError, EngineError or JournalError; then nothing was committed."""
        if request.n > 1:
            raise WireError(400, "unsupported_parameter", "n > 1 is not supported: ask once for each answer")
        call.stage = "rendering"
        prompt = await self._prompts.prepare(rollout, request)
        max_tokens = self._room(rollout, prompt, request)
        call.stage = "sampling"
        wire_ids = rollout.tips.prompt(prompt.match.parent, prompt.input_ids)
        generation = await self._engine.generate(wire_ids, prompt.length, max_tokens, rollout.id, call.call_id)
        call.stage = "committing"
        answer, invalid = self._read(prompt, generation, request, call)
        response = self._commit(rollout, call, dialect, request, body, prompt, wire_ids, generation, answer, max_tokens)
        rollout.count_invalid(call, invalid)
        return response

    def _room(self, rollout: Rollout, prompt: Prompt, request: Request) -> int:
        room = self.max_model_len - prompt.length
        if room < 1:
            raise WireError(
                400,
                "context_length_exceeded",
                f"This model's maximum context length is {self.max_model_len} tokens, "
                f"and your messages are {prompt.length} tokens. Please reduce the length of the messages.",
            )
        left = rollout.room() - len(prompt.input_ids)
        if left < 1:
            raise WireError(403, "limit_tokens", f"this rollout has used its {rollout.limits.tokens} tokens")
        return min(room, left, self._sampling.max_tokens, request.max_tokens or room)

    def _read(self, prompt: Prompt, generation: Generation, request: Request, call: Call) -> tuple[Answer, int]:
        """The answer, and how many of its tool calls no harness could run."""
        parsed = self._renderer.parse(generation.ids.tolist(), request.tools, prompt.tail())
        self.malformed += parsed.malformed
        message = _with_ids(parsed.message, call)
        finish: Finish = generation.finish
        if finish == "stop" and message.tool_calls:
            finish = "tool_calls"
        invalid = parsed.malformed + count_invalid(message, request)
        return Answer(message, finish, prompt.length, len(generation.ids)), invalid

    def _commit(
        self,
        rollout: Rollout,
        call: Call,
        dialect: Dialect,
        request: Request,
        body: bytes,
        prompt: Prompt,
        wire_ids: bytes,
        generation: Generation,
        answer: Answer,
        max_tokens: int,
    ) -> bytes:
        """No await in here: the rollout is open, the record is written, the tree has it, all at once or not at all."""
        rollout.check_open()
        write = dialect.write_stream if request.stream else dialect.write_answer
        response = write(answer, request, call.call_id)
        side = is_side_call(rollout, request)
        names = [version for _, version in generation.versions]
        self._ledger.closed(
            rollout,
            call,
            request=request,
            body=body,
            response=response,
            status=200,
            match=prompt.match,
            answer=answer,
            auxiliary=side,
            input_ids=prompt.input_ids,
            prompt_len=prompt.length,
            completion_ids=generation.ids,
            logprobs=generation.logprobs,
            weight_version_min=names[0],
            weight_version_max=names[-1],
            versions=[list(version) for version in generation.versions],
            ttft_s=generation.ttft_s,
            max_tokens=max_tokens,
            sampling=self._sampling.model_dump(),
            overridden=overridden(request.sampling, self._sampling.model_dump()),
        )
        turn = rollout.graph.commit(
            prompt.match,
            call_id=call.call_id,
            input_ids=prompt.input_ids,
            answer=answer.message,
            answer_ids=generation.ids,
            logprobs=generation.logprobs,
            versions=generation.versions,
            auxiliary=side,
        )
        rollout.tips.push(turn, wire_ids)
        rollout.add(len(prompt.input_ids) + len(generation.ids), prompt.length, len(generation.ids))
        return response


def _with_ids(message: Message, call: Call) -> Message:
    """Calls get ids: without `_`, since some harnesses drop it, and unique over the rollout."""
    calls = tuple(replace(one, id=f"call{call.call_id[1:13]}{index}") for index, one in enumerate(message.tool_calls))
    return replace(message, tool_calls=calls)
