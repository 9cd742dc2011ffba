"""Verify a run of the store: its samples, the policy it names, one report.

Takes exactly the policy that the run's own configuration says, whatever stands in openforge.toml by now: served again
by vLLM, or, where it was trained meanwhile, from the checkpoints (verify_training.py).
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cluster.launch import engine_for
from openforge.config import Config
from openforge.errors import CheckError, UsageError
from openforge.store.compact import changed_files
from openforge.store.connect import query
from openforge_tui import train_set, verify
from openforge_tui.policies import resolve_policy
from openforge_tui.verify import Report, Sample
from openforge_tui.verify_training import saved_weights, verify_training
from proxy_addons.engines.vllm import Vllm
from proxy_addons.settings import EngineSettings, Sampling

_COLUMNS = "rollout_id, sample_id, token_ids, loss_mask, logprobs, versions"
_TRAINED = "WHERE rollout_id IN (SELECT rollout_id FROM trained)"


async def verify_run(
    store_root: Path,
    run_id: str,
    say: Callable[[str], None] = lambda text: None,
    *,
    concurrency: int = 8,
    trained: bool = False,
) -> Report:
    """Score every sample of a run, or those that it `trained` on.

    Raises UsageError when there is nothing to verify, CheckError for other weights or files that were changed.
    """
    if changed := changed_files(store_root / "runs" / run_id):
        raise CheckError(
            f"{', '.join(map(str, changed))}: changed since the run was compacted",
            hint="bring the files back from a copy; nothing of this run can be trusted as it is",
        )
    config = run_config(store_root, run_id)
    samples = read_samples(store_root, run_id, trained=trained)
    if config.run.mode != "train" or config.policy.engine != "vllm":
        raise UsageError(
            f"{run_id} was recorded from a provider, not sampled here: it has no logprobs to verify",
            hint=f"openforge rollouts {run_id}, or verify a run of mode train (`openforge runs`)",
        )
    if not samples:
        what = "trained on no samples" if trained else "has no samples"
        raise UsageError(f"{run_id} {what}", hint=f"openforge rollouts {run_id}")
    trainer = store_root / "runs" / run_id / "trainer"
    if (trainer / "plan.jsonl").is_file():
        if train_set.missing():
            raise UsageError("verifying a training run needs the train set", hint="./just train-set")
        return await verify_training(samples, saved_weights(trainer, say), config, say)
    model_dir = None if config.policy.base_url else resolve_policy(config.policy.model)
    async with engine_for(config, model_dir, say) as serving:
        if config.policy.base_url:
            say(f"{serving.url} does not say which weights it serves; the numbers alone decide")
        else:
            verify.check_versions(samples, serving.weight_version)
        settings = EngineSettings(url=serving.url, model=config.policy.served_name)
        engine = Vllm(settings, Sampling(), stop_ids=(), vocab_size=0)
        try:
            say(f"scoring {len(samples)} samples …")
            limits = verify.tolerance(config.policy.dtype)
            return await verify.verify(samples, engine.score, limits, concurrency=concurrency)
        finally:
            await engine.close()


def run_config(store_root: Path, run_id: str) -> Config:
    """The configuration a run was started with. Raises UsageError when this version cannot read it."""
    rows = query(store_root, "SELECT config FROM runs WHERE run_id = ?", [run_id], runs=[run_id])
    if not rows:
        raise UsageError(f"{run_id} has no beginning in the journal", hint="openforge runs")
    try:
        return Config.model_validate_json(rows[0]["config"])
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(f"the configuration of {run_id} cannot be read: {where}: {first['msg']}") from error


def read_samples(store_root: Path, run_id: str, *, trained: bool = False) -> list[Sample]:
    """What training would see of a run: the samples of each rollout's latest attempt, or those that `trained` it."""
    sql = f"SELECT {_COLUMNS} FROM samples {_TRAINED if trained else ''} ORDER BY rollout_id, sample_id"
    return [_sample(row) for row in query(store_root, sql, runs=[run_id])]


def _sample(row: dict[str, Any]) -> Sample:
    spans = [(int(offset), str(version)) for offset, version in json.loads(row["versions"] or "[]")]
    logprobs = row["logprobs"] or []
    return Sample(row["rollout_id"], row["sample_id"], row["token_ids"], row["loss_mask"], logprobs, spans)
