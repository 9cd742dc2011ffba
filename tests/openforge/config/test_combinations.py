from pathlib import Path

import pytest

from openforge.config import Config, load
from openforge.errors import ConfigError


@pytest.fixture
def refusal(tmp_path: Path):
    def refuse(text: str) -> ConfigError:
        (tmp_path / "openforge.toml").write_text(f"version = 1\n{text}\n")
        with pytest.raises(ConfigError) as caught:
            load(tmp_path, env={})
        assert caught.value.exit_code == 2
        return caught.value

    return refuse


def accepted(folder: Path, text: str) -> Config:
    (folder / "openforge.toml").write_text(f"version = 1\n{text}\n")
    return load(folder, env={}).config


def test_a_provider_needs_an_address_and_record_mode(refusal, tmp_path: Path) -> None:
    assert "needs policy.base_url" in refusal("[policy]\nengine = 'openai'").summary
    text = "[policy]\nengine = 'openai'\nbase_url = 'http://x'\n"
    assert 'run.mode = "record"' in refusal(text).hint
    assert accepted(tmp_path, text + "[run]\nmode = 'record'").run.mode == "record"


def test_updates_share_the_groups_equally(refusal) -> None:
    told = refusal("[trainer]\ngroups = 12\nupdates = 5")
    assert told.summary == "openforge.toml:4: trainer.updates = 5 does not divide trainer.groups = 12"
    assert "1, 2, 3, 4, 6, 12 would do" in told.hint


def test_a_mix_names_harnesses_of_the_run(refusal, tmp_path: Path) -> None:
    text = "[run]\nharnesses = ['react', 'pi']\n[trainer.mix]\nreact = 2\n"
    told = refusal(text + "codex = 1")
    assert told.summary.startswith("openforge.toml:6: trainer.mix names 'codex', which is not in run.harnesses")
    assert accepted(tmp_path, text).trainer.mix == {"react": 2}


def test_a_mix_of_nothing_is_refused(refusal, tmp_path: Path) -> None:
    assert "every harness the weight 0" in refusal("[trainer.mix]\nreact = 0").summary
    assert accepted(tmp_path, "[run]\nharnesses = ['react', 'pi']\n[trainer.mix]\nreact = 0").trainer.mix == {
        "react": 0
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("backend = 'megatron'", "openforge.toml:3: trainer.backend"),
        ("mode = 'separate_async'\ngpus = 1", "openforge.toml:3: trainer.mode"),
        ("gpus = 12", "openforge.toml:3: trainer.gpus"),
        ("optimizer = 'muon'\ngpus = 2", "openforge.toml:3: trainer.optimizer"),
        ("optimizer = 'muon'\ngpus = 1\nbackend = 'megatron'", "openforge.toml:3: trainer.optimizer"),
    ],
)
def test_a_way_to_train_needs_its_machine(refusal, text: str, told: str) -> None:
    assert refusal(f"[trainer]\n{text}").summary.startswith(told)


@pytest.mark.parametrize(
    "text",
    [
        "mode = 'separate_async'",
        "mode = 'separate_async'\ngpus = 2",
        "backend = 'megatron'\ngpus = 16",
        "optimizer = 'muon'\ngpus = 1",
    ],
)
def test_machines_that_serve(tmp_path: Path, text: str) -> None:
    accepted(tmp_path, f"[trainer]\n{text}")


@pytest.mark.parametrize(
    "text", ["prompt_length = 600\nresponse_length = 500", "prompt_length = 1024", "response_length = 2000"]
)
def test_lengths_fit_the_model(refusal, text: str) -> None:
    told = refusal(f"[policy]\nmax_model_len = 1024\n[trainer]\n{text}").summary
    assert "do not fit policy.max_model_len = 1024" in told


def test_every_clash_is_told_at_once(refusal) -> None:
    told = refusal("[trainer]\nupdates = 5\nbackend = 'megatron'").summary
    assert len(told.splitlines()) == 2


def test_a_pod_claims_no_more_than_it_may_take(refusal, tmp_path: Path) -> None:
    assert "sandbox.request_cpu = 8 is more than sandbox.cpu = 4" in refusal("[sandbox]\nrequest_cpu = 8").summary
    assert "request_memory" in refusal("[sandbox]\nmemory = '64Mi'\nrequest_memory = '1Gi'").summary
    assert accepted(tmp_path, "[sandbox]\nrequest_cpu = 4").sandbox.request_cpu == 4


def test_a_simulated_cluster_needs_no_provider(tmp_path: Path) -> None:
    config = load(tmp_path, "sim", env={}).config
    assert (config.target.kind, config.policy.engine, config.run.mode) == ("sim", "openai", "record")
    with pytest.raises(ConfigError, match="needs tokens"):
        load(tmp_path, "sim", {"run.mode": "train"}, env={})


def test_a_cap_names_a_harness_of_the_run(refusal, tmp_path: Path) -> None:
    assert "names 'codex'" in refusal("[run]\nharness_concurrency = {codex = 2}").summary
    text = "[run]\nharnesses = ['mine/odd']\nharness_concurrency = {odd = 2}"
    assert accepted(tmp_path, text).run.harness_concurrency == {"odd": 2}
