"""What a harness does on the wire, seen by running it: its fingerprint, and how that differs from the last one.

The real harness solves one task against a scripted policy through the recorder in record mode. The fingerprint is read
from the journal alone, so it says what was recorded, not what a manifest promises.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster.orchestrator import Rollout
from openforge.harness import HarnessManifest
from openforge.ids import RolloutId
from openforge.journal.reader import read_records

Fingerprint = dict[str, Any]
_KINDS = ("call.open", "call.close", "call.abort", "call.refused", "egress")


def fingerprint(run_dir: Path, rollout: Rollout) -> Fingerprint:
    """What one rollout of the harness showed. Lists are sorted where the order is not the harness's doing."""
    records = [r for r in read_records(run_dir, _KINDS) if r["rollout_id"] == rollout.id]
    closed = [r for r in records if r["kind"] == "call.close"]
    main = [r for r in closed if not r.get("auxiliary")]
    first = _request(run_dir, rollout.id, main[0]) if main else {}
    tools = [_tool_name(tool) for tool in first.get("tools", [])]
    egress = Counter(f"{r['host']}:{r['port']} {r['decision']}" for r in records if r["kind"] == "egress")
    ended, sealed = rollout.result.exit, rollout.result.sealed
    return {
        "dialects": sorted({r["dialect"] for r in closed}),
        "stream": sorted({r["stream"] for r in closed}),
        "tools": tools,
        "tools_hash": _hash(first.get("tools", [])),
        "dropped_tools": sorted({name for r in closed for name in r.get("dropped_tools") or []}),
        "first_request_bytes": main[0]["request_bytes"] if main else None,
        "prompt_tokens": main[0].get("prompt_tokens") if main else None,
        "max_tokens": sorted({r["max_tokens"] for r in closed if r.get("max_tokens") is not None}),
        "sampling_keys": sorted({key for r in closed for key in (r.get("sampling") or {})}),
        "calls": len(main),
        "breaks": dict(Counter(r["break_reason"] for r in main if r.get("break_reason"))),
        "side_calls": len(closed) - len(main),
        "aborted": sealed.aborted if sealed is not None else None,
        "refused_calls": sealed.refused_calls if sealed is not None else None,
        "egress": sorted(egress),
        "exit_code": ended.code if ended is not None else None,
        "reward": rollout.reward,
    }


def last_fingerprint(store_root: Path, harness: str, before: str) -> tuple[str, Fingerprint] | None:
    """The newest recorded fingerprint of a harness in a run that sorts before `before`, with its version."""
    for run_dir in sorted((store_root / "runs").glob("r*"), reverse=True):
        if run_dir.name >= before:
            continue
        found = [r for r in read_records(run_dir, ["harness.fingerprint"]) if r["harness"] == harness]
        if found:
            return str(found[-1].get("version") or ""), found[-1]["fingerprint"]
    return None


def drift(old: Fingerprint, new: Fingerprint) -> list[tuple[str, Any, Any]]:
    """What changed: (name, before, now). The size of the prompt counts as changed from 2 % on, since it holds dates."""
    return [(key, old.get(key), new.get(key)) for key in sorted(old.keys() | new.keys()) if not _same(key, old, new)]


def surprises(manifest: HarnessManifest, seen: Fingerprint) -> list[str]:
    """Where the harness does not do what its manifest says."""
    found = []
    if other := sorted(set(seen["dialects"]) - set(manifest.spec.dialects)):
        found.append(f"speaks {', '.join(other)}, which its manifest does not name")
    rewrites = {key: count for key, count in seen["breaks"].items() if key not in ("root", "append")}
    if manifest.spec.history.append_only and rewrites:
        found.append(f"its history is said to be append-only, but {json.dumps(rewrites)} was seen")
    if seen["calls"] == 0:
        found.append("made no model call")
    if seen["exit_code"] not in manifest.spec.run.exit_ok:
        found.append(f"ended with exit code {seen['exit_code']}")
    return found


def _same(key: str, old: Fingerprint, new: Fingerprint) -> bool:
    before, now = old.get(key), new.get(key)
    if key in ("first_request_bytes", "prompt_tokens") and before and now:
        return bool(abs(before - now) <= 0.02 * before)
    return bool(before == now)


def _request(run_dir: Path, rollout_id: RolloutId, record: dict[str, Any]) -> dict[str, Any]:
    """The wire body of a call, with what was stored apart put back."""
    wanted = set(_blob_names(record.get("request")))
    blobs = {r["hash"]: r["data"] for r in read_records(run_dir, ["blob"]) if r["hash"] in wanted} if wanted else {}
    whole = _fill(record.get("request"), blobs)
    return whole if isinstance(whole, dict) else {}


def _blob_names(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if set(value) == {"$blob"}:
            yield value["$blob"]
        else:
            for child in value.values():
                yield from _blob_names(child)
    elif isinstance(value, list):
        for child in value:
            yield from _blob_names(child)


def _fill(value: Any, blobs: dict[str, str]) -> Any:
    if isinstance(value, dict):
        if set(value) == {"$blob"}:
            text = blobs.get(value["$blob"], "")
            try:
                return json.loads(text)
            except ValueError:
                return text
        return {key: _fill(child, blobs) for key, child in value.items()}
    if isinstance(value, list):
        return [_fill(child, blobs) for child in value]
    return value


def _tool_name(tool: Any) -> str:
    if not isinstance(tool, dict):
        return "?"
    inner = tool.get("function", tool)
    return str(inner.get("name") or tool.get("type") or "?")


def _hash(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()
