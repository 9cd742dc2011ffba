"""vLLM itself finds the plug-in in the environment that the policy server gets, and its queues then sleep."""

import os
import subprocess
import sys

import pytest

from cluster.policy_server import vllm_environment

pytest.importorskip("vllm", reason="the train set is not installed")

ASK = """
from vllm.plugins import load_general_plugins
load_general_plugins()
from vllm.distributed.device_communicators import shm_broadcast
print("told", shm_broadcast.SpinCondition.__init__.__defaults__, shm_broadcast.SHM_READER_RECHECK_INTERVAL_MS)
"""


@pytest.mark.contract
def test_vllm_loads_the_plug_in_and_its_queues_no_longer_spin() -> None:
    environment = {**os.environ, **vllm_environment()}
    told = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, timeout=120)
    assert "told (0.0,) 4" in told.stdout, told.stderr[-2000:]
