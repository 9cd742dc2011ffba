"""What exactness costs in each dtype: recorded logprobs against the same ids scored again, and against damaged ones.

Runs tasks/desk in `react` with the starter (or the policy named as argument) in float32 and then in bfloat16, each
served by a vLLM of its own on this machine, and verifies every sample. Then it damages each sample in four ways, which
verify must notice. `./just bench verify [POLICY]`, about three minutes on two cores.
"""

import asyncio
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks.figure import report
from cluster.launch import engine_for, make_specs, run_rollouts
from openforge.config.models import Config
from openforge.ids import new_run_id
from openforge_tui import verify
from openforge_tui.policies import resolve_policy
from openforge_tui.verify import Sample
from openforge_tui.verify_run import read_samples
from proxy_addons.engines.vllm import Vllm
from proxy_addons.settings import EngineSettings, Sampling


def other_prompt_id(sample: Sample) -> Sample:
    at = sample.loss_mask.index(1) - 8  # near enough to matter to a policy with a short attention window
    return replace(sample, token_ids=[*sample.token_ids[:at], sample.token_ids[at] ^ 1, *sample.token_ids[at + 1 :]])


def lost_prompt_id(sample: Sample) -> Sample:
    at = sample.loss_mask.index(1) - 8
    parts = (sample.token_ids, sample.loss_mask, sample.logprobs)
    ids, mask, logprobs = ([*part[:at], *part[at + 1 :]] for part in parts)
    return replace(sample, token_ids=ids, loss_mask=mask, logprobs=logprobs)


def other_sampled_id(sample: Sample) -> Sample:
    at = sample.loss_mask.index(1) + 3
    return replace(sample, token_ids=[*sample.token_ids[:at], sample.token_ids[at] ^ 1, *sample.token_ids[at + 1 :]])


def shifted_logprobs(sample: Sample) -> Sample:
    sampled = [index for index, flag in enumerate(sample.loss_mask) if flag]
    moved = dict(zip(sampled, (sample.logprobs[index] for index in sampled[1:] + sampled[:1]), strict=True))
    return replace(sample, logprobs=[moved.get(index, value) for index, value in enumerate(sample.logprobs)])


FAULTS: dict[str, Callable[[Sample], Sample]] = {
    "one prompt id changed": other_prompt_id,
    "one prompt id lost": lost_prompt_id,
    "one sampled id changed": other_sampled_id,
    "logprobs shifted": shifted_logprobs,
}


async def measure(policy: str, dtype: str, store_root: Path) -> list[bool]:
    config = Config.model_validate({"policy": {"model": policy, "dtype": dtype}, "run": {"harnesses": ["react"]}})
    model_dir = resolve_policy(policy)
    run_id = new_run_id()
    async with engine_for(config, model_dir, lambda text: None) as serving:
        specs = make_specs(config)
        await run_rollouts(config, store_root, specs, model_dir=model_dir, engine=serving, run_id=run_id)
        samples = read_samples(store_root, run_id)
        engine = Vllm(EngineSettings(url=serving.url, model="policy"), Sampling(), stop_ids=(), vocab_size=0)
        try:
            return await compare(samples, engine, dtype)
        finally:
            await engine.close()


async def compare(samples: list[Sample], engine: Vllm, dtype: str) -> list[bool]:
    limits = verify.tolerance(dtype)
    whole = await verify.verify(samples, engine.score, limits)
    print(f"  {dtype}: {whole.summary()}", flush=True)
    results = [
        report(f"largest difference of a logprob, {dtype}", whole.max_diff, "", limits.maximum),
        report(f"mean difference, {dtype}", whole.mean_diff, "", limits.mean),
    ]
    for name, damage in FAULTS.items():
        found = await verify.verify([damage(sample) for sample in samples], engine.score, limits)
        share = len(found.failures) / len(samples)
        if limits.weak:
            print(f"  {dtype}: {name}: noticed in {share:.2f} of samples (weak: no goal)", flush=True)
        else:
            results.append(report(f"{name}, {dtype}: noticed in a share of samples", share, "", 0.9, at_least=True))
    return results


async def main() -> int:
    policy = sys.argv[1] if len(sys.argv) > 1 else "starter"
    results: list[bool] = []
    with tempfile.TemporaryDirectory(prefix="openforge-bench-") as store:
        for dtype in ("float32", "bfloat16"):
            results += await measure(policy, dtype, Path(store))
    return 0 if all(results) else 5


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
