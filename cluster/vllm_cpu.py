"""A plug-in that vLLM loads in each of its processes on a machine without a GPU: they sleep while they wait.

vLLM's engine and worker talk through shared memory and spin for a second after each message, which takes both cores of
a small machine from the harnesses that the answers are for. They then wait for a message that may get lost, for 5 s;
here for 4 ms. Measured on two cores: 16 ms of CPU a step before, 6 to 10 after, at the same latency.
"""

import importlib
from typing import Any

_RECHECK_MS = 4


def load() -> None:
    """Called by vLLM (entry point `vllm.general_plugins`), before it makes any queue."""
    queues: Any = importlib.import_module("vllm.distributed.device_communicators.shm_broadcast")
    queues.SpinCondition.__init__.__defaults__ = (0.0,)  # busy_loop_s
    queues.SHM_READER_RECHECK_INTERVAL_MS = _RECHECK_MS
