import json
import tomllib
from pathlib import Path

from openforge.config import Config, load, render
from openforge.config.models import Policy, Trainer


def test_the_first_file_is_valid_and_changes_no_default(tmp_path: Path) -> None:
    (tmp_path / "openforge.toml").write_text(render.first_file())
    assert load(tmp_path, env={}).config == Config()
    uncommented = "\n".join(line.removeprefix("# ") for line in render.first_file().splitlines() if "=" in line)
    assert "version" in tomllib.loads(render.first_file())
    assert 'engine = "openai"' in uncommented
    assert 'mode = "record"' in uncommented


def test_rows_say_where_each_value_comes_from(tmp_path: Path) -> None:
    (tmp_path / "openforge.toml").write_text("version = 1\n[run]\nsamples = 3\n")
    rows = {row.key: row for row in render.rows(load(tmp_path, env={}))}
    assert rows["run.samples"] == ("run.samples", 3, "openforge.toml:3")
    assert rows["run.seed"].source == "default"
    assert set(rows) >= {"policy.sampling.temperature", "sandbox.memory", "recorder.max_body", "target.kind"}


def test_secrets_are_hidden_and_what_only_sounds_like_one_is_not() -> None:
    verl = {"api_key": "sk-aaaaaaaaaaaaaaaaaaaaaaaa", "max_tokens": 3, "nested": {"password": "hunter22"}}
    shown = render.public(Config(policy=Policy(api_key_env="MY_KEY"), trainer=Trainer(verl=verl)))
    text = json.dumps(shown)
    assert "sk-aaaa" not in text
    assert "hunter22" not in text
    assert shown["policy"]["api_key_env"] == "MY_KEY"
    assert shown["trainer"]["verl"]["max_tokens"] == 3


def test_the_schema_knows_every_table_and_no_unknown_key() -> None:
    schema = render.schema()
    assert {"version", "policy", "run", "sandbox", "recorder", "store", "trainer", "target"} <= schema[
        "properties"
    ].keys()
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["version"]
    json.dumps(schema)
