"""What a recorder in a cluster may do and who may reach it, as objects; the tokenizer that it is sent; its image."""

import json
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from cluster import images
from cluster import recorder_spec as spec
from cluster.recorder_image import gather
from cluster.recorder_pods import _packed
from cluster.runtimes import pod_spec

LEASE = ("owner-a", "uid-1")
META = spec.metadata("recorder-a-0-0", spec.labels("r1", "a"), LEASE)
SECRET = "Jx8fKq2vTz-RkY3mWb7LdN0c"


def made(**options: Any) -> dict[str, Any]:
    return spec.pod(META, "i:1", **{"pull_policy": "IfNotPresent", "node_selector": {}, "runtime_class": "", **options})


def test_a_recorders_pod_is_bounded_and_may_nothing() -> None:
    told = made()["spec"]
    assert (told["restartPolicy"], told["automountServiceAccountToken"]) == ("Never", False)
    assert told["securityContext"]["runAsNonRoot"]
    assert [container["name"] for container in told["containers"]] == [spec.RECORDER, spec.SHIPPER]
    for container in told["containers"]:
        security = container["securityContext"]
        assert (security["allowPrivilegeEscalation"], security["readOnlyRootFilesystem"]) == (False, True)
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]
    assert made(node_selector={"pool": "a"}, runtime_class="gvisor")["spec"]["runtimeClassName"] == "gvisor"


def test_secrets_stand_in_the_secret_and_nowhere_else() -> None:
    settings = {"run_id": "r1", "run_dir": "here/runs/r1", "model_dir": None, "engine": {"api_key": "sk-live"}}
    told = spec.settings_in_pod(settings, SECRET)
    secret = spec.secret(META, told)
    assert json.loads(secret["stringData"]["settings.json"]) == told
    rest = json.dumps([made(), spec.service(META), spec.door("r1", "a"), META])
    assert SECRET not in rest
    assert "sk-live" not in rest
    assert made()["spec"]["volumes"][-1]["secret"]["secretName"] == secret["metadata"]["name"]


def test_settings_name_no_folder_of_this_machine_and_the_control_face_stays_on_loopback() -> None:
    settings = {"run_id": "r1", "run_dir": "here/runs/r1", "model_dir": "here/model", "ca_dir": "here/ca", "host": ""}
    told = spec.settings_in_pod(settings, SECRET)
    assert "here" not in json.dumps(told)
    assert told["model_dir"] == "/data/model"
    assert "admin_host" not in told  # its default
    assert told["host"] == "0.0.0.0"


def test_all_of_it_goes_with_the_lease_of_its_orchestrator() -> None:
    for thing in (made(), spec.service(META), spec.secret(META, {})):
        [owner] = thing["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Lease", *LEASE)


def test_rollouts_of_the_run_come_in_by_two_ports_and_go_out_to_no_other_recorder() -> None:
    door, wall = spec.door("r1", "a"), pod_spec.wall("r1", (spec.peer("r1", "a"), (8080, 8081)))
    [rule], [way_out] = door["ingress"], wall["egress"]
    assert [port["port"] for port in rule["ports"]] == [port["port"] for port in way_out["ports"]] == [8080, 8081]
    recorder, rollout = made()["metadata"]["labels"], pod_spec.pod_labels("r1", "a")
    assert door["podSelector"]["matchLabels"].items() <= recorder.items()
    assert way_out["to"][0]["podSelector"]["matchLabels"].items() <= recorder.items()
    assert rule["from"][0]["podSelector"]["matchLabels"].items() <= rollout.items()
    other = spec.labels("r2", "b")
    assert not way_out["to"][0]["podSelector"]["matchLabels"].items() <= other.items()
    service = spec.service(META)["spec"]
    assert service["selector"].items() <= recorder.items()
    assert [port["port"] for port in service["ports"]] == [8080, 8081]


def test_a_model_is_sent_without_its_weights(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("{}")
    (tmp_path / "tokenizer.json").symlink_to("real")
    for name in ("chat_template.jinja", "model.safetensors", "config.json"):
        (tmp_path / name).write_text("{}")
    with tarfile.open(fileobj=BytesIO(_packed(tmp_path))) as archive:
        names = {member.name: member.isfile() for member in archive}
    assert names == {"chat_template.jinja": True, "config.json": True, "tokenizer.json": True}
    with tarfile.open(fileobj=BytesIO(_packed(None))) as archive:
        assert archive.getnames() == []


def test_a_recorders_image_has_what_it_imports_and_is_named_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [pair.partition("=")[0] for pair in gather.versions()]
    assert {"python", "mitmproxy", "aiohttp", "pydantic-core", "mitmproxy-rs"} <= set(names)
    assert not {"pytest", "duckdb", "pyarrow", "torch"} & set(names)
    files = {str(path.relative_to(images._ROOT)) for path in images._recorder_files()}
    assert {"proxy_addons/pod.py", "openforge/journal/writer.py", "cluster/recorder_link.py"} <= files
    before = images.recorder_name()
    assert before == images.recorder_name()
    monkeypatch.setattr(gather, "versions", lambda: ["python=4.0"])
    assert images.recorder_name() != before


def test_packages_elsewhere_on_the_path_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """setuptools, once imported, offers the packages that it carries as if they were installed."""
    before = gather.versions()
    for name in ("jinja2", "tomli"):
        found = tmp_path / f"{name}-0.0.1.dist-info"
        found.mkdir()
        (found / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.0.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    gather.distributions.cache_clear()
    assert gather.versions() == before
