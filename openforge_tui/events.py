"""What happened in a run, a line a record: for `openforge logs` and the app. Pure: a record in, text out."""

import time
from typing import Any

KINDS = (
    *("run.start", "rollout.state", "grade", "call.abort", "call.refused", "egress", "sample.refused"),
    *("train.start", "train.step", "run.pause", "run.end"),
)
_HEADER = ("v", "recorder_id", "seq", "ts", "kind", "run_id", "rollout_id", "attempt", "config")


def event_line(record: dict[str, Any]) -> str:
    """One line: when (UTC), what about, what."""
    clock = time.strftime("%H:%M:%S", time.gmtime(record["ts"]))
    facts = {name: value for name, value in record.items() if name not in _HEADER and value not in (None, "", [], {})}
    if record["kind"] == "train.step":
        facts["rollouts"] = len(record["rollouts"])
    subject = (record["rollout_id"] or record["run_id"]).removeprefix(f"{record['run_id']}.")
    if record["kind"] == "rollout.state":
        subject = f"{subject} {facts.pop('state')}" + (f" (attempt {record['attempt']})" if record["attempt"] else "")
        facts = {name: facts[name] for name in ("error_class", "detail", "duration_s", "exit_code") if name in facts}
    else:
        subject = f"{subject} {record['kind']}"
    return f"{clock} {subject} {' '.join(f'{name}={value}' for name, value in facts.items())}".rstrip()
