from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from proxy_addons.egress import allowing_rule
from proxy_addons.settings import RecorderConfig

GOOD: dict[str, Any] = {
    "run_id": "r1",
    "run_dir": Path("runs/r1"),
    "engine": {"url": "http://127.0.0.1:1", "model": "policy"},
    "model_dir": Path("model"),
    "control_secret": "admin",
    "ca_dir": Path("ca"),
}
STRONG = "Jx8fKq2vTz-RkY3mWb7LdN0c"


def test_settings_that_are_safe_are_taken() -> None:
    assert RecorderConfig.model_validate(GOOD).sampling.max_tokens == 256
    assert RecorderConfig.model_validate({**GOOD, "host": "0.0.0.0", "control_secret": STRONG}).host == "0.0.0.0"
    assert RecorderConfig.model_validate({**GOOD, "engine": {"kind": "trainer", "model": "m"}}).engine.url == ""


BAD = [
    ({"admin_host": "0.0.0.0"}, "control_secret is too weak"),
    ({"admin_host": "recorder.svc", "control_secret": "a" * 40}, "control_secret is too weak"),
    ({"control_secret": ""}, "must not be empty"),
    ({"typo": 1}, "Extra inputs"),
    ({"max_body_bytes": 1 << 20}, "greater than or equal"),
    ({"model_dir": None}, "needs model_dir"),
    ({"mode": "record"}, "record openai"),
    ({"mode": "record", "engine": {"kind": "trainer", "model": "m"}}, "record openai"),
    ({"engine": {"kind": "openai", "model": "m", "url": "http://127.0.0.1:1"}}, "train takes vllm or trainer"),
    ({"engine": {"model": "m"}}, "engine.url must say where vllm is"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=[str(change) for change, _ in BAD])
def test_s17_settings_that_are_not_safe_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RecorderConfig.model_validate({**GOOD, **change})


@pytest.mark.parametrize(
    ("host", "port", "rule"),
    [
        ("packages.org", 443, "packages.org"),
        ("Packages.ORG.", 80, "packages.org"),
        ("packages.org", 22, None),
        ("evil-packages.org", 443, None),
        ("packages.org.evil", 443, None),
        ("git.corp", 22, "git.corp:22"),
        ("git.corp", 443, None),
        ("a.b.files.net", 443, "*.files.net"),
        ("files.net", 443, None),
        ("127.0.0.1", 443, None),
    ],
)
def test_what_an_egress_rule_allows(host: str, port: int, rule: str | None) -> None:
    assert allowing_rule(["packages.org", "git.corp:22", "*.files.net"], host, port) == rule
