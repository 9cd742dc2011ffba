"""Rollouts in pods of a real kind cluster: what they come to, what they can reach, what is left behind."""

import json
from typing import Any

import pytest
from desk import Desk

from cluster import docker, kind
from cluster.kube import Kube
from cluster.runtimes.pod_spec import RUN

pytestmark = [pytest.mark.contract, pytest.mark.timeout(600)]


async def run(pods: Desk, commands: list[str], count: int = 1, **options: Any) -> list[Any]:
    """Rollouts whose model gives these commands, one after the other."""
    pods.model.commands = lambda session, n: commands[n] if n < len(commands) else None
    task = options.pop("task", None) or pods.task()
    async with pods.orchestrator(**options) as orchestrator:
        return await orchestrator.run_all([pods.spec(task, sample=sample) for sample in range(count)])


async def left(pods: Desk, kube: Kube) -> list[str]:
    listed = await kube.list_pods(f"{RUN}={pods.run_dir.name}")
    return [pod["metadata"]["name"] for pod in listed["items"]]


async def test_a_rollout_in_a_pod_is_graded_and_leaves_nothing(pods: Desk, kube: Kube, cluster: kind.Cluster) -> None:
    good, other = await run(pods, ["cat start.txt; echo 42 > answer.txt", "ls"], count=2)
    assert {(r.state, r.result.grade.reward) for r in (good, other)} == {("done", 1.0)}
    assert await left(pods, kube) == []
    assert f"run-{pods.run_dir.name}" not in kind.kubectl(cluster, "get", "networkpolicy", "-A", step="")


async def test_what_an_agent_is_and_sees(pods: Desk) -> None:
    probe = (
        "id -u; pwd; ls / ; cat /proc/1/cmdline | tr '\\0' ' '; ls /tests /orig /opt/task /logs/verifier 2>&1; "
        "touch /usr/x 2>&1; cat /run/secrets/kubernetes.io/serviceaccount/token 2>&1; kill -9 1; "
        "kill -TERM 1; kill -INT 1; sleep 1; echo alive; "
        "cat /proc/1/environ 2>&1 | head -c 300; ps ax | wc -l"
    )
    [rollout] = await run(pods, [probe])
    assert rollout.result.grade.reward == 0.0
    text = pods.model.said[-1]
    assert text.startswith("1000\n/app\n")
    assert "seed" not in text
    assert "Read-only file system" in text
    assert "serviceaccount/token: No such file" in text.replace("'", "")
    assert "alive" in text
    assert "Permission denied" in text  # PID 1 is not to be looked into


async def test_the_verifier_has_the_work_the_start_files_and_a_place_for_what_it_does_not_trust(pods: Desk) -> None:
    test = (
        'cmp -s start.txt "$TASK_ORIG/start.txt" && [ "$(cat answer.txt)" = 42 ] || exit 1\n'
        'got=$(untrusted bash run.sh) && [ "$got" = "tests: 0 reward: 0" ] && echo 1 > "$REWARD_FILE" || echo "$got"\n'
    )
    script = "echo tests: $(ls /tests 2>/dev/null | wc -l) reward: $(ls /logs/verifier 2>/dev/null | wc -l)"
    task = pods.task(test, setup="echo $OPENFORGE_SEED > start.txt\n")
    [rollout] = await run(pods, [f"echo 42 > answer.txt; echo '{script}' > run.sh"], task=task)
    assert rollout.result.grade.reward == 1.0, rollout.result


async def test_links_out_of_the_work_are_taken_out_before_the_verifier_looks(pods: Desk) -> None:
    test = '[ -e answer.txt ] && echo 1 > "$REWARD_FILE" || echo 0 > "$REWARD_FILE"\n'
    [rollout] = await run(pods, ["ln -s /tests/test.sh answer.txt; mkfifo pipe"], task=pods.task(test))
    assert rollout.result.grade.reward == 0.0
    assert set(rollout.result.grade.details["removed"]) == {"answer.txt", "pipe"}


async def test_nothing_the_agent_started_lives_while_its_work_is_judged(pods: Desk) -> None:
    again = "while :; do sleep 0.1; echo 42 > /app/answer.txt; done"
    later = f"(trap '' HUP TERM; {again}) >/dev/null 2>&1 </dev/null & disown; echo started"
    test = 'rm -f answer.txt; sleep 1; [ -e answer.txt ] && echo 1 > "$REWARD_FILE" || echo 0 > "$REWARD_FILE"\n'
    [rollout] = await run(pods, [later], task=pods.task(test))
    assert (rollout.state, rollout.result.grade.reward) == ("done", 0.0)


async def test_a_pod_reaches_the_recorder_and_nothing_else(pods: Desk, kube: Kube, cluster: kind.Cluster) -> None:
    service, _ = await kube.service_address()
    node = docker.docker(
        "inspect", "-f", "{{.NetworkSettings.Networks.kind.IPAddress}}", f"{cluster.name}-control-plane", step=""
    )
    dns = kind.kubectl(
        cluster, "-n", "kube-system", "get", "svc", "kube-dns", "-o", "jsonpath={.spec.clusterIP}", step=""
    )
    pod = kind.kubectl(
        cluster,
        "-n",
        "kube-system",
        "get",
        "pods",
        "-l",
        "k8s-app=kube-dns",
        "-o",
        "jsonpath={.items[0].status.podIP}",
        step="",
    )
    places = {
        "api service": (service, 443),
        "api server": (node, 6443),
        "kubelet": (node, 10250),
        "dns service": (dns, 53),
        "another pod": (pod, 8080),
        "host, other port": (kind.host_address(), 22),
        "host, docker": (kind.host_address(), 2375),
        "metadata": ("169.254.169.254", 80),
        "public": ("1.1.1.1", 443),
    }
    program = (
        "import socket,json\\nfor name,(host,port) in json.loads(PLACES).items():\\n"
        "  try: socket.create_connection((host,port),0.5); print(name,'OPEN')\\n"
        "  except OSError as e: print(name,'closed')\\n"
        "try: socket.getaddrinfo('kubernetes.default',443); print('name OPEN')\\nexcept OSError: print('name closed')"
    )
    program = program.replace("PLACES", repr(json.dumps(places)).replace('"', '\\"'))
    await run(pods, [f'printf "{program}" > /tmp/p.py; python3 /tmp/p.py'])
    lines = pods.model.said[-1].splitlines()
    assert len(lines) == len(places) + 1, lines
    assert [line for line in lines if not line.endswith("closed")] == []
    # that they are closed to this pod, and not by themselves, is what the control says: the node reaches them
    reached = docker.docker(
        "exec", f"{cluster.name}-control-plane", "bash", "-c", f"</dev/tcp/{service}/443 && echo yes", step=""
    )
    assert reached == "yes"


async def test_from_its_first_moment_on_a_harness_finds_every_door_closed(pods: Desk, kube: Kube) -> None:
    """A new pod can connect anywhere until the cluster has heard of it. Its harness starts after that."""
    host, port = await kube.service_address()
    program = f"""
import socket, time
end, opened, tries = time.time() + 3, 0, 0
while time.time() < end:
    tries += 1
    try:
        socket.create_connection(("{host}", {port}), 0.1)
        opened += 1
    except OSError:
        pass
print(tries > 15, opened)
"""
    told: dict[str, str] = {}

    def commands(session: str, n: int) -> str | None:
        if n:
            told[session] = pods.model.said[-1]
        return [f"cat > /tmp/k.py <<'END'\n{program}END\npython3 /tmp/k.py", None][n]

    pods.model.commands = commands
    async with pods.orchestrator(concurrency=6, time_limit_s=60.0) as orchestrator:
        task = pods.task()
        await orchestrator.run_all([pods.spec(task, sample=n) for n in range(12)])
    assert list(told.values()) == ["True 0\n"] * 12


def system(cluster: kind.Cluster, *words: str) -> None:
    kind.kubectl(cluster, "--namespace", "kube-system", *words, step="on the cluster's own pods")


async def test_with_the_policy_agent_dead_a_pod_reaches_nothing_new(pods: Desk, cluster: kind.Cluster) -> None:
    """Rollouts cannot work then, and none gets out: no answer is a lost attempt, never an open door."""
    agent, away = ("daemonset", "network-policy"), "/spec/template/spec/nodeSelector"
    patch = ("patch", *agent, "--type=json", "--patch")
    system(cluster, *patch, f'[{{"op": "add", "path": "{away}", "value": {{"nowhere": "yes"}}}}]')
    try:
        system(cluster, "wait", "--for=delete", "pod", "--selector=app=network-policy", "--timeout=60s")
        [rollout] = await run(pods, ["true"], time_limit_s=20.0)
    finally:
        system(cluster, *patch, f'[{{"op": "remove", "path": "{away}"}}]')
        system(cluster, "rollout", "status", *agent, "--timeout=90s")
    assert rollout.state == "error"
    assert "does not reach the recorder" in rollout.result.detail


async def test_two_recorders_of_this_machine_are_both_reached(pods: Desk) -> None:
    rollouts = await run(pods, ["echo 42 > answer.txt"], count=2, concurrency=2, shards=2)
    assert {(str(rollout.state), rollout.reward) for rollout in rollouts} == {("done", 1.0)}
    assert len({record["recorder_id"] for record in pods.records("call.close")}) == 2
