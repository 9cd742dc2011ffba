from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from openforge.config import Config
from openforge.config.models import Trainer
from trainer.render import Place, hydra_value, overrides
from trainer.render_gpu import layout
from trainer.settings import TrainSettings


@pytest.fixture
def render(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 32768}')

    def rendered(resume: Path | None = None, **trainer: object) -> dict[str, Any]:
        config = Config(trainer=Trainer.model_validate(trainer))
        settings = TrainSettings.from_config(config, tmp_path)
        place = Place(tmp_path / "plan", tmp_path / "eval", tmp_path / "trainer", tmp_path / "tb", resume)
        parsed = OverridesParser.create().parse_overrides(overrides(settings, place))
        return {override.get_key_element().lstrip("+"): override.value() for override in parsed}

    return rendered


def test_own_keys_come_last_and_untouched(render) -> None:
    own = {
        "trainer": {"project_name": "a, b='c'", "logger": ["x y", 1]},
        "data.shuffle": True,
        "ray_kwargs": {"n": 1e-7},
    }
    found = render(verl=own)
    assert found["trainer.project_name"] == "a, b='c'"
    assert found["trainer.logger"] == ["x y", 1]
    assert found["ray_kwargs.n"] == 1e-7
    assert list(found)[-1] == "ray_kwargs.n"
    assert found["data.shuffle"] is True


def test_a_key_that_says_how_it_is_set_stays_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    config = Config(trainer=Trainer(verl={"+data": {"mine": 1}, "data": {"seed": 2}}))
    settings = TrainSettings.from_config(config, tmp_path)
    told = overrides(settings, Place(tmp_path, tmp_path, tmp_path, tmp_path))
    assert told[-2:] == ["+data.mine=1", "++data.seed=2"]


@pytest.mark.parametrize(("backend", "kept"), [("fsdp2", "fsdp_config"), ("megatron", "megatron")])
def test_of_two_backends_only_the_keys_of_the_chosen_one_are_passed(render, backend: str, kept: str) -> None:
    own = {"actor_rollout_ref": {"actor": {"fsdp_config": {"fsdp_size": 3}, "megatron": {"use_mbridge": 3}}}}
    found = render(backend=backend, gpus=8, verl=own)
    assert [key.split(".")[-2] for key in found if found[key] == 3] == [kept]


def test_the_reference_model_is_asked_for_only_with_kl(render) -> None:
    key = "actor_rollout_ref.actor.use_kl_loss"
    assert (render(kl=0.0)[key], render(kl=0.01)[key]) == (False, True)


@pytest.mark.parametrize("mode", ["sync", "separate_async"])
def test_weights_travel_by_file_on_a_cpu_and_by_nccl_between_gpus(render, mode: str) -> None:
    key = "actor_rollout_ref.rollout.checkpoint_engine.backend"
    expected = (None, None) if mode == "sync" else ("openforge_file", "nccl")
    assert (render(mode=mode).get(key), render(mode=mode, gpus=8).get(key)) == expected


def test_gpus_are_all_shared_in_turns_and_halved_otherwise(render) -> None:
    keys = ("trainer.n_gpus_per_node", "actor_rollout_ref.rollout.n_gpus_per_node")
    turns, apart = render(gpus=8), render(gpus=8, mode="separate_async")
    assert [turns.get(key) for key in keys] == [8, None]
    assert [apart.get(key) for key in keys] == [4, 4]


@pytest.mark.parametrize(("gpus", "expected"), [(1, (1, 1)), (8, (1, 8)), (16, (2, 8)), (24, (3, 8))])
def test_more_than_eight_gpus_are_whole_machines(gpus: int, expected: tuple[int, int]) -> None:
    assert layout(gpus) == expected


def test_a_resumed_training_names_its_checkpoint_and_evaluates_no_beginning(render, tmp_path: Path) -> None:
    found = render(resume=tmp_path / "global_step_3")
    assert found["trainer.resume_mode"] == "resume_path"
    assert found["trainer.resume_from_path"] == str(tmp_path / "global_step_3")
    assert found["trainer.val_before_train"] is False
    assert render()["trainer.resume_from_path"] is None


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(-1e9, 1e9)
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.from_regex(r"[a-z_]{1,5}", fullmatch=True), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(_VALUES)
def test_hydra_reads_back_every_value_that_toml_can_hold(value: Any) -> None:
    read = OverridesParser.create().parse_override(f"key={hydra_value(value)}").value()
    assert _plain(read) == value


def _plain(read: Any) -> Any:
    if isinstance(read, list):
        return [_plain(inside) for inside in read]
    if isinstance(read, dict):
        return {str(key): _plain(inside) for key, inside in read.items()}
    return str(read) if isinstance(read, str) or type(read).__name__ == "QuotedString" else read


@pytest.mark.parametrize(("vocab", "hidden", "expected"), [(4_000, 128, 64), (49_152, 576, 207)])
def test_all_weights_fit_into_the_bucket_that_takes_them_to_vllm(
    tmp_path: Path, vocab: int, hidden: int, expected: int
) -> None:
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate((vocab // 1000) << 20)
    (tmp_path / "config.json").write_text(f'{{"vocab_size": {vocab}, "hidden_size": {hidden}}}')
    settings = TrainSettings.from_config(Config(), tmp_path)
    told = overrides(settings, Place(tmp_path, tmp_path, tmp_path, tmp_path))
    assert [key for key in told if key.endswith(f"update_weights_bucket_megabytes={expected}")]
