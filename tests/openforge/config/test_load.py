from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openforge.config import Config, load, overridden
from openforge.config.load import Layer, find_project, key_lines, leaves, merge
from openforge.config.models import Policy, Run
from openforge.errors import ConfigError


@pytest.fixture
def write(tmp_path: Path):
    def write_file(text: str) -> Path:
        (tmp_path / "openforge.toml").write_text(text)
        return tmp_path

    return write_file


def refusal(folder: Path, **options: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(folder, **{"env": {}, **options})
    assert caught.value.exit_code == 2
    return caught.value


def test_no_file_at_all_is_the_defaults(tmp_path: Path) -> None:
    loaded = load(tmp_path, env={})
    assert loaded.config == Config()
    assert set(loaded.sources.values()) == {"default"}
    assert loaded.store_root == tmp_path / ".openforge"


def test_every_layer_wins_over_the_one_below(write, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".config" / "openforge").mkdir(parents=True)
    user = home / ".config" / "openforge" / "config.toml"
    user.write_text("version = 1\n[run]\nsamples = 1\nseed = 1\nconcurrency = 1\nretries = 1\nmax_calls = 1\n")
    folder = write(
        "version = 1\n[run]\nsamples = 2\nseed = 2\nconcurrency = 2\nretries = 2\n"
        "[target.gpu]\nkind = 'kubernetes'\n[target.gpu.run]\nsamples = 3\nseed = 3\nconcurrency = 3\n"
    )
    env = {"HOME": str(home), "OPENFORGE_RUN__SAMPLES": "4", "OPENFORGE_RUN__SEED": "4"}
    loaded = load(folder, "gpu", {"run.samples": "5"}, env)
    run = loaded.config.run
    assert (run.samples, run.seed, run.concurrency, run.retries, run.max_calls) == (5, 4, 3, 2, 1)
    told = {key: loaded.sources[f"run.{key}"] for key in ("samples", "seed", "concurrency", "retries", "max_calls")}
    assert told == {
        "samples": "flag run.samples",
        "seed": "environment OPENFORGE_RUN__SEED",
        "concurrency": "target gpu (openforge.toml:12)",
        "retries": "openforge.toml:6",
        "max_calls": f"{user}:7",
    }
    assert loaded.config.target.name == "gpu"
    assert loaded.targets == ("gpu", "kind", "local", "sim")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[run]\nsample = 3", "openforge.toml:3: run.sample is not a known key; did you mean run.samples?"),
        ("samples = 3", "openforge.toml:2: samples is not a known key; did you mean run.samples?"),
        ("[policy.samplin]\ntop_p = 1.0", "openforge.toml:2: policy.samplin is not a known key"),
        ("[run]\nsamples = 'two'", "openforge.toml:3: run.samples should be a valid integer, but it is 'two'"),
        ("[run]\ntasks = 'desk'", "openforge.toml:3: run.tasks should be an array, but it is 'desk'"),
        ("run = 3", "openforge.toml:2: run should be a table, but it is 3"),
        ("[sandbox]\nmemory = '4G'", "openforge.toml:3: sandbox.memory expected a size such as 512Mi or 4Gi"),
        ("[run]\nmode = 'trian'", "openforge.toml:3: run.mode should be 'train' or 'record', but it is 'trian'"),
        ("[run\n", "openforge.toml:2: not valid TOML"),
        ("[target.x]\ngpus = 1", "openforge.toml:3: target.x.gpus is not a known key; did you mean target.x.gpu?"),
        ("[target.x.run]\nsample = 1", "openforge.toml:3: target.x.run.sample is not a known key"),
    ],
)
def test_a_mistake_names_file_line_and_what_was_meant(write, text: str, told: str) -> None:
    assert told in refusal(write(f"version = 1\n{text}\n")).summary


def test_every_mistake_is_told_at_once(write) -> None:
    summary = refusal(write("version = 1\n[run]\nsample = 1\nseeds = 1\n")).summary
    assert len(summary.splitlines()) == 2


def test_a_mistake_is_told_even_when_something_overrides_it(write) -> None:
    folder = write("version = 1\n[run]\nsamples = 'two'\n")
    assert ":3: run.samples" in refusal(folder, overrides={"run.samples": "2"}).summary


@pytest.mark.parametrize(("text", "told"), [("", "`version` is missing"), ("version = 2", "version should be 1")])
def test_a_file_says_its_version(write, text: str, told: str) -> None:
    assert told in refusal(write(text)).summary


def test_variables_and_flags_are_checked_like_files(tmp_path: Path) -> None:
    told = refusal(tmp_path, env={"OPENFORGE_RUN__SAMPLE": "1"}).summary
    assert told == "environment OPENFORGE_RUN__SAMPLE: run.sample is not a known key; did you mean run.samples?"
    assert refusal(tmp_path, overrides={"run.samples": "x"}).summary.startswith("flag run.samples: run.samples should")


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("run.samples", "3", 3),
        ("run.time_limit_s", "1.5", 1.5),
        ("run.tasks", "a, b", ("a", "b")),
        ("run.tasks", '["a"]', ("a",)),
        ("policy.model", "3", "3"),
        ("policy.enable_thinking", "true", True),
        ("policy.enable_thinking", "default", None),
        ("trainer.verl.actor.lr", "1e-4", 1e-4),
        ("trainer.verl.name", "x", "x"),
        ("trainer.mix", "{react = 2, pi = 1}", {"react": 2, "pi": 1}),
        ("trainer.mix.react", "0.5", 0.5),
        ("trainer.eval_tasks", "desk, held-out", ("desk", "held-out")),
        ("target.gpu", "2", 2),
    ],
)
def test_a_flag_and_a_variable_become_the_type_of_their_key(tmp_path: Path, key: str, text: str, value: object) -> None:
    variable = "OPENFORGE_" + key.upper().replace(".", "__")
    (tmp_path / "openforge.toml").write_text("version = 1\n[run]\nharnesses = ['react', 'pi']\n")
    for loaded in (load(tmp_path, overrides={key: text}, env={}), load(tmp_path, env={variable: text})):
        found: Any = loaded.config.model_dump()
        for part in key.split("."):
            found = found[part]
        assert found == value


def test_other_variables_of_the_same_prefix_are_no_keys(tmp_path: Path) -> None:
    assert load(tmp_path, env={"OPENFORGE_CACHE": "/x", "OPENFORGE_SEED": "1"}).config == Config()


def test_an_unknown_target_is_named(write) -> None:
    told = refusal(write("version = 1\n[target.cluster]\nkind = 'kind'\n"), target="clutser")
    assert "clutser" in told.summary
    assert "cluster" in told.hint


def test_the_nearest_folder_with_a_file_is_the_project(write, tmp_path: Path) -> None:
    write("version = 1\n")
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert find_project(below) == tmp_path
    assert find_project(Path("/proc")) == Path("/proc")


def test_lines_are_found_in_any_toml() -> None:
    multi_line = 'a = 1\n"b.c" = """\n[x]\ny = 1\n"""\n'
    text = multi_line + '[t.u] # comment\nv = [\n  "[z]", # w = 1\n]\nk.l = {m = 1, n = 2}\n\n[[s]]\nq = 1\n'
    lines = key_lines(text)
    assert lines[("a",)] == 1
    assert lines[("b.c",)] == 2
    assert lines[("t", "u")] == 6
    assert lines[("t", "u", "v")] == 7
    assert lines[("t", "u", "k", "l", "n")] == 10
    assert ("y",) not in lines


_TREES = st.recursive(
    st.integers(),
    lambda inner: st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3),
    max_leaves=8,
)


def layers(trees: list[Any]) -> list[Layer]:
    found = []
    for number, tree in enumerate(trees):
        layer = Layer()
        for key, value in leaves(tree):
            layer.put(key, value, str(number))
        found.append(layer)
    return found


@given(st.lists(st.dictionaries(st.tuples(*[st.sampled_from("abc")] * 2), st.integers(), max_size=6), max_size=5))
def test_each_leaf_has_the_value_and_the_source_of_the_last_layer_that_sets_it(trees: list[dict[Any, int]]) -> None:
    data, where = merge(layers([_nested(tree) for tree in trees]))
    expected = {key: (value, str(n)) for n, tree in enumerate(trees) for key, value in tree.items()}
    assert {key: (value, where[key]) for key, value in leaves(data)} == expected


@given(st.lists(st.dictionaries(st.tuples(*[st.sampled_from("abc")] * 2), st.integers(), max_size=6), max_size=5))
def test_merging_changes_no_layer_and_in_steps_gives_the_same(trees: list[dict[Any, int]]) -> None:
    made = layers([_nested(tree) for tree in trees])
    before = [dict(leaves(layer.data)) for layer in made]
    at_once = merge(made)[0]
    data: dict[str, Any] = {}
    for layer in made:
        data = merge([Layer(data), layer])[0]
    assert data == at_once
    assert [dict(leaves(layer.data)) for layer in made] == before


def _nested(tree: dict[tuple[str, ...], int]) -> dict[str, Any]:
    layer = Layer()
    for key, value in tree.items():
        layer.put(key, value, "")
    return layer.data


@pytest.mark.parametrize(
    ("table", "line", "expected"),
    [
        ("sandbox", 'memory = "0"', "between 16Mi and 1Ei"),
        ("sandbox", 'memory = "99999999999999999999Ti"', "between 16Mi and 1Ei"),
        ("sandbox", f'memory = "{"9" * 400}"', "a size such as"),
        ("sandbox", 'disk = "0Gi"', "between 1Mi and 1Ei"),
        ("sandbox", "cpu = inf", "finite"),
        ("sandbox", "cpu_seconds = 99999999999999999999", "31536000"),
        ("sandbox", "open_files = 3", "64"),
        ("sandbox", "open_files = 99999999999999", "1048576"),
        ("recorder", 'max_body = "1Mi"', "between 64Mi and 1Ei"),
        ("recorder", "keep_alive_s = 1e300", "31536000"),
        ("run", "samples = 100001", "100000"),
        ("run", "concurrency = 4097", "4096"),
        ("run", "time_limit_s = -1", "greater than 0"),
        ("run", "time_limit_s = nan", "finite"),
        ("run", "time_limit_s = inf", "finite"),
        ("run", "seed = 99999999999999999999", "2147483647"),
        ("policy", 'model = ""', "at least 1 character"),
        ("policy", 'base_url = "ftp://x"', "http://"),
        ("policy", 'base_url = "https://"', "http://"),
        ("policy.sampling", "temperature = nan", "finite"),
        ("policy.sampling", "temperature = inf", "finite"),
        ("policy.sampling", "temperature = -0.5", "greater than or equal to 0"),
        ("policy.sampling", "top_p = nan", "finite"),
        ("policy.sampling", "top_k = 0", "-1 or at least 1"),
        ("policy.sampling", "top_k = -7", "-1 or at least 1"),
        ("trainer", "mode = 'async'", "'sync' or 'separate_async'"),
        ("trainer", "steps = 0", "greater than 0"),
        ("trainer", "groups = 0", "greater than 0"),
        ("trainer", "group_size = 1", "greater than or equal to 2"),
        ("trainer", "lr = 0.0", "greater than 0"),
        ("trainer", "lr = nan", "finite"),
        ("trainer", "optimizer = 'sgd'", "'adamw' or 'muon'"),
        ("trainer", "kl = -0.1", "greater than or equal to 0"),
        ("trainer", "entropy = inf", "finite"),
        ("trainer", "clip_low = 1.0", "less than 1"),
        ("trainer", "clip_high = nan", "finite"),
        ("trainer", "max_staleness = 0", "greater than 0"),
        ("trainer", "eval_every = -2", "greater than or equal to -1"),
        ("trainer", "eval_samples = 0", "greater than 0"),
        ("trainer", "save_every = 0", "greater than 0"),
        ("trainer", "backend = 'deepspeed'", "'fsdp2' or 'megatron'"),
        ("trainer", "gpus = -1", "greater than or equal to 0"),
        ("trainer", "penalize_invalid_calls = 1", "valid boolean"),
    ],
)
def test_what_a_run_would_break_on_is_refused_with_its_line(write, table: str, line: str, expected: str) -> None:
    told = refusal(write(f"version = 1\n[{table}]\n{line}\n")).summary
    assert told.startswith(f"openforge.toml:3: {table}.{line.partition(' ')[0]} ")
    assert expected in told


@pytest.mark.parametrize("version", ["true", "1.0", '"1"', "0"])
def test_a_version_that_only_equals_one_is_refused(write, version: str) -> None:
    assert refusal(write(f"version = {version}\n")).summary.startswith("openforge.toml:1: version should be 1, but")


def test_an_openforge_toml_that_is_a_folder_is_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / "openforge.toml").mkdir()
    assert find_project(tmp_path) == tmp_path
    assert "openforge.toml cannot be read: " in refusal(tmp_path).summary


def test_flags_go_above_a_whole_configuration() -> None:
    was = Config(policy=Policy(model="smollm2"), run=Run(samples=7))
    found = overridden(was, {"run.samples": "2", "run.harnesses": "pi"})
    assert (found.policy.model, found.run.samples, found.run.harnesses) == ("smollm2", 2, ("pi",))
    with pytest.raises(ConfigError, match=r"flag run\.sample"):
        overridden(was, {"run.sample": "2"})
