"""A plain ReAct loop: ask the model, run the shell commands it wants, repeat until it answers without a tool call.

Standard library only; knows nothing about recording. Exit codes: 0 done, 1 the model API gave up, 3 too many steps.
"""

import http.client
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

SYSTEM = "You are a desk assistant. Work in the current folder with the shell tool. Say Done when finished."
TOOL = {
    "type": "function",
    "function": {
        "name": "shell",
        "description": "Run a shell command in the work folder and return its output.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
MAX_STEPS, MAX_OUTPUT, COMMAND_S = 40, 4000, 60


def skills() -> str:
    """One line a skill: name, description and where its body is, as the other harnesses list them."""
    lines = ["\nSkills (read the file before use):"]
    for file in sorted(Path(".agents/skills").glob("*/SKILL.md")):
        head = dict(line.split(":", 1) for line in file.read_text().split("---")[1].splitlines() if ":" in line)
        lines.append(f"- {head.get('name', file.parent.name).strip()}: {head.get('description', '').strip()} ({file})")
    return "\n".join(lines) if lines[1:] else ""


def ask(messages: list[dict]) -> dict:
    """One model call; what is likely to pass is tried again, a refusal is not. The base URL is the way out, so no proxy
    is asked for."""
    body = json.dumps({"model": os.environ["REACT_MODEL"], "messages": messages, "tools": [TOOL]})
    headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["REACT_API_KEY"]}
    url = urlsplit(os.environ["REACT_BASE_URL"] + "/chat/completions")
    connect = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    for wait_s in (0.5, 2, 8, None):
        link = connect(url.netloc, timeout=900)
        try:
            link.request("POST", url.path, body.encode(), headers)
            response = link.getresponse()
            answer = response.read()
            if response.status == 200:
                return json.loads(answer)["choices"][0]["message"]
            problem = f"HTTP {response.status} {answer[:500].decode(errors='replace')}"
            passing = response.status in (408, 429, 500, 502, 503, 504)
        except (OSError, http.client.HTTPException, ValueError) as error:
            problem, passing = repr(error), True
        finally:
            link.close()
        if wait_s is None or not passing:
            sys.exit(f"model API: {problem}")
        time.sleep(wait_s)
    raise AssertionError("unreachable")


def shell(arguments: str) -> str:
    """Run one command; whatever the model got wrong is told to the model, not raised."""
    try:
        command = json.loads(arguments)["command"]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = subprocess.run(["bash", "-c", command], timeout=COMMAND_S, **quiet)
    except (ValueError, TypeError, KeyError):
        return 'error: arguments must be {"command": "…"}'
    except subprocess.TimeoutExpired:
        return f"error: no end after {COMMAND_S} s"
    text = done.stdout.decode(errors="replace")[:MAX_OUTPUT]
    return (text + (f"\n[exit {done.returncode}]" if done.returncode else "")) or "(no output)"


messages: list[dict] = [{"role": "system", "content": SYSTEM + skills()}, {"role": "user", "content": sys.argv[1]}]
for _ in range(MAX_STEPS):
    answer = ask(messages)
    messages.append(answer)
    if not answer.get("tool_calls"):
        sys.exit(print(answer.get("content") or ""))
    for call in answer["tool_calls"]:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        output = shell(arguments) if name == "shell" else f"error: there is no tool {name!r}"
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})
sys.exit(3)
