"""The renderer of a model folder, chosen by trying and checked before the first call.

`auto` takes the Qwen3 renderer exactly when it writes the folder's own chat template; otherwise the template bridge.
The check renders a fixed conversation and stops the start when a continuation would not be exact.
"""

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

from openforge.errors import ConfigError
from openforge.tokens.graph import Break
from openforge.tokens.message import Message, Tool, ToolCall
from proxy_addons.render.base import Renderer
from proxy_addons.render.qwen3 import NAMES, Qwen3
from proxy_addons.render.template import Template
from proxy_addons.render.tok import Tok

_TOOL = Tool("bash", "Run a command", {"type": "object", "properties": {"cmd": {"type": "string"}}})
_CALL = ToolCall("call_1", "bash", '{"cmd": "ls -l"}')
_ASKED = (Message("system", "You are an agent."), Message("user", "List the files, please."))
_NEXT = (Message("tool", "a.txt\nb é 你", tool_call_id="call_1"), Message("user", "Thanks. And now?"))


def load_renderer(model_dir: Path, kind: str = "auto", enable_thinking: bool | None = None) -> Renderer:
    """Read `tokenizer.json`, `tokenizer_config.json` and the chat template of a folder. Raises ConfigError."""
    if not (model_dir / "tokenizer.json").is_file():
        raise ConfigError(f"{model_dir} has no tokenizer.json", hint="policy.model must be a model or tokenizer folder")
    config = _read(model_dir / "tokenizer_config.json")
    tok = Tok(model_dir / "tokenizer.json", _token(config, "eos_token") or "<|im_end|>")
    vocab_size = max(tok.size, int(_read(model_dir / "config.json").get("vocab_size") or 0))
    template = _template(model_dir, config)
    if kind in ("auto", "qwen3") and all(name in tok.added for name in NAMES):
        qwen3 = Qwen3(tok, enable_thinking, vocab_size)
        if kind == "qwen3" or not template or _writes(qwen3, template):
            return check(qwen3)
    if kind == "qwen3":
        raise ConfigError(f"{model_dir} has no Qwen3 tokenizer: {', '.join(n for n in NAMES if n not in tok.added)}")
    if not template:
        raise ConfigError(f"{model_dir} has no chat template", hint="add chat_template.jinja to the folder")
    if tok.eos_token_id is None:
        raise ConfigError(f"{model_dir}: eos_token {tok.eos_token!r} is not in the vocabulary")
    stops = _read(model_dir / "generation_config.json").get("eos_token_id") or []
    more = tuple(stops) if isinstance(stops, list) else (int(stops),)
    bos = _token(config, "bos_token")
    return check(Template(tok, template, enable_thinking, vocab_size, bos_token=bos, stop_ids=more))


def check(renderer: Renderer) -> Renderer:
    """Prove on one conversation what every rollout relies on; ConfigError names what does not hold."""
    said = Message("assistant", "Looking.", tool_calls=(_CALL,))
    prompt = renderer.first(_ASKED, (_TOOL,))
    answer = renderer.encode_answer(said)
    tail = prompt[-16:]
    parsed = renderer.parse(answer, (_TOOL,), tail)
    calls = [(call.name, call.arguments) for call in parsed.message.tool_calls]
    if answer[-1] not in renderer.stop_ids or parsed.message.text != said.text or calls != [("bash", _CALL.arguments)]:
        raise ConfigError(f"the {renderer.name} renderer does not read back what it writes: {parsed.message}")
    after = renderer.bridge(tail, answer, _NEXT, (_TOOL,))
    if isinstance(after, Break):
        raise ConfigError(f"the {renderer.name} renderer cannot continue an answer: {after}")
    if renderer.tok.decode(prompt[-3:]) != renderer.tok.decode(after[-3:]):
        raise ConfigError(f"the {renderer.name} renderer ends a continuation without the generation prompt")
    whole = renderer.first((*_ASKED, said, *_NEXT), (_TOOL,))
    if whole[-len(after) :] != after:
        raise ConfigError(f"the {renderer.name} renderer continues an answer differently than the template does")
    special = set(renderer.tok.added.values())
    quoted = (_ASKED[0], Message("user", "".join(renderer.tok.added)))
    plain = (_ASKED[0], Message("user", "x"))
    counts = [sum(token in special for token in renderer.first(chat, ())) for chat in (quoted, plain)]
    if counts[0] != counts[1]:
        raise ConfigError(f"the {renderer.name} renderer lets quoted special tokens through")
    return renderer


def write_vocab(renderer: Renderer, folder: Path) -> str:
    """Write `<folder>/<hash>.jsonl` (token_id, text) once; returns the hash."""
    name = blake2b(renderer.tok.full.to_str().encode(), digest_size=16).hexdigest()
    path = folder / f"{name}.jsonl"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        texts = renderer.tok.full.decode_batch(
            [[token] for token in range(renderer.tok.size)], skip_special_tokens=False
        )
        lines = (json.dumps({"token_id": token, "text": text}, ensure_ascii=False) for token, text in enumerate(texts))
        scratch = path.with_suffix(f".{id(renderer)}.tmp")
        scratch.write_text("\n".join(lines) + "\n")
        scratch.replace(path)
    return name


def _writes(renderer: Qwen3, template: str) -> bool:
    try:
        by_template = Template(renderer.tok, template, None, renderer.vocab_size)
        chats = (_ASKED, (*_ASKED, Message("assistant", "", tool_calls=(_CALL,)), *_NEXT))
        return all(
            by_template.first(chat, tools) == Qwen3(renderer.tok, None, renderer.vocab_size).first(chat, tools)
            for chat in chats
            for tools in ((), (_TOOL,))
        )
    except ConfigError:
        return False


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    value = json.loads(path.read_text())
    return value if isinstance(value, dict) else {}


def _token(config: dict[str, Any], key: str) -> str:
    value = config.get(key)
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else ""


def _template(model_dir: Path, config: dict[str, Any]) -> str:
    if (model_dir / "chat_template.jinja").is_file():
        return (model_dir / "chat_template.jinja").read_text()
    value = config.get("chat_template")
    if isinstance(value, list):
        value = next((entry.get("template") for entry in value if entry.get("name") == "default"), "")
    return value if isinstance(value, str) else ""
