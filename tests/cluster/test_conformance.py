"""Fingerprints: what counts as drift, what contradicts a manifest, and how one is read."""

from typing import Any

import pytest
from desk import Desk

from cluster.conformance import drift, fingerprint, last_fingerprint, surprises
from openforge.harness import load_harness

SEEN: dict[str, Any] = {
    "dialects": ["chat"],
    "tools": ["shell"],
    "first_request_bytes": 1000,
    "breaks": {"root": 1, "append": 2},
    "calls": 3,
    "exit_code": 0,
}


def test_a_new_tool_is_drift_and_a_new_date_in_the_prompt_is_not() -> None:
    assert drift(SEEN, {**SEEN, "first_request_bytes": 1010}) == []
    assert drift(SEEN, {**SEEN, "first_request_bytes": 1200}) == [("first_request_bytes", 1000, 1200)]
    assert drift(SEEN, {**SEEN, "tools": ["shell", "web"]}) == [("tools", ["shell"], ["shell", "web"])]
    assert drift(SEEN, {**SEEN, "new": 1}) == [("new", None, 1)]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"dialects": ["chat", "responses"]}, "responses"),
        ({"breaks": {"root": 1, "fork:no-match": 2}}, "append-only"),
        ({"calls": 0}, "no model call"),
        ({"exit_code": 1}, "exit code 1"),
    ],
)
def test_what_contradicts_the_manifest_is_said(change: dict[str, Any], says: str) -> None:
    assert surprises(load_harness("react"), SEEN) == []
    assert says in "; ".join(surprises(load_harness("react"), {**SEEN, **change}))


@pytest.mark.contract
@pytest.mark.usefixtures("isolated")
async def test_a_fingerprint_is_read_from_the_journal_and_found_again(desk: Desk) -> None:
    desk.model.commands = lambda session, n: ["echo 42 > answer.txt; curl -s https://example.com", None][n]
    async with desk.orchestrator() as orchestrator:
        [rollout] = await orchestrator.run_all([desk.spec()])
        seen = fingerprint(desk.run_dir, rollout)
        orchestrator.journal.append("harness.fingerprint", harness="react", version="1", fingerprint=seen)
    assert (seen["tools"], seen["calls"], seen["reward"]) == (["shell"], 2, 1.0)
    assert seen["egress"] == ["example.com:443 refuse"]
    assert seen["breaks"] == {"root": 1, "append": 1}
    assert last_fingerprint(desk.store, "react", "s") == ("1", seen)
    assert last_fingerprint(desk.store, "react", desk.run_dir.name) is None
