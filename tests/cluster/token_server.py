"""As model_server.py, asked by token ids: what a recorder in train mode asks of vLLM."""

import json
from pathlib import Path

from aiohttp import web
from model_server import ModelServer
from tokenizers import Tokenizer


class TokenServer(ModelServer):
    """`commands(session, n)` as there; a session has no name here."""

    def __init__(self, model_dir: Path) -> None:
        super().__init__()
        self._tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))

    def routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_get("/v1/models", self._models)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "policy", "max_model_len": 16384}]})

    async def _complete(self, request: web.Request) -> web.Response:
        asked = await request.json()
        prompt = asked["prompt"]
        if asked.get("echo"):
            return web.json_response(
                {"choices": [{"logprobs": {"token_logprobs": [None] + [-0.5] * (len(prompt) - 1)}}]}
            )
        text = self._tokenizer.decode(prompt, skip_special_tokens=False)
        command = self.commands("", text.count("<tool_response>"))
        call = json.dumps({"name": "shell", "arguments": {"command": command}})
        said = f"<tool_call>\n{call}\n</tool_call>" if command else "Done."
        ids = [*self._tokenizer.encode(said, add_special_tokens=False).ids, self._tokenizer.token_to_id("<|im_end|>")]
        cut, ids = len(ids) > asked["max_tokens"], ids[: asked["max_tokens"]]
        logprobs = {"tokens": [f"token_id:{token}" for token in ids], "token_logprobs": [-0.5] * len(ids)}
        choice = {"index": 0, "text": "", "finish_reason": "length" if cut else "stop", "logprobs": logprobs}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
        return web.json_response({"choices": [choice], "usage": usage})
