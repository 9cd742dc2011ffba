"""Two trainings on one machine must not hand each other weights.

veRL names the socket that weights travel through, in the folder for temporary files, by Ray's job id. Each training
here has a Ray cluster of its own, and each cluster calls its first job `01000000`: the second training would take the
socket of the first away from it, in silence. Here the id says which run it is. Loaded into every process of veRL.
"""

import os
from pathlib import Path

from ray.runtime_context import RuntimeContext

_ray_job_id = RuntimeContext.get_job_id


def _job_id(self: RuntimeContext) -> str:
    folder = os.environ.get("RAY_TMPDIR", "")  # of-RUN, see openforge_tui/train.py
    return f"{_ray_job_id(self)}-{Path(folder).name}" if folder else str(_ray_job_id(self))


RuntimeContext.get_job_id = _job_id
