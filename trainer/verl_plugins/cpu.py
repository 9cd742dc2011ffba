"""A CPU platform for veRL 0.9.1, which ships platforms for accelerators only.

Loaded into each of veRL's processes by the variables of `trainer.verl_plugins.CPU_ENVIRONMENT`. It registers the
platform and works around the places of veRL that were written for CUDA and NPU only; each says which. One process a
trainer: more ranks over gloo were not tried.
"""

import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry
from verl.utils import torch_functional

# EngineRegistry has no engine class for "cpu"; the FSDP one registered for "cuda" asks the platform for its device.
os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")


class _Device(ModuleType):
    """Stands where veRL expects `torch.cuda`: no memory statistics, the rest is `torch.cpu`."""

    def is_available(self) -> bool:
        return False

    def get_device_name(self, index: int = 0) -> str:
        return "CPU"

    def empty_cache(self) -> None:
        return None

    def memory_allocated(self, index: int = 0) -> int:
        return 0

    memory_reserved = max_memory_allocated = max_memory_reserved = memory_allocated

    def mem_get_info(self, index: int = 0) -> tuple[int, int]:
        return 0, 0

    def get_rng_state(self, index: int = 0) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, index: int = 0) -> None:
        torch.set_rng_state(state)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):  # type: ignore[misc]
    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _Device("openforge_cpu_device")

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return os.environ.get("VERL_PLATFORM") == "cpu"

    def current_device(self) -> str:  # veRL passes this to tensor.to(): an index would mean the first GPU
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        return None

    def synchronize(self, device_index: int | None = None) -> None:
        return None

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings: str) -> None:
        return None

    def empty_cache(self) -> None:
        return None

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "VERL_CPU_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        return None

    def profiler_stop(self) -> None:
        return None

    def ray_resource_name(self) -> str:
        return "GPU"  # veRL's resource check knows GPU and NPU: Ray is told of GPUs that are CPUs

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


_init_process_group, _all_reduce = dist.init_process_group, dist.all_reduce


def _init_gloo(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
    """veRL joins "cpu:gloo" and "<device>:<backend>", which names the CPU twice here."""
    _init_process_group("cpu:gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)


def _all_reduce_gloo(tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, *args: Any, **kwargs: Any) -> Any:
    """veRL averages with ReduceOp.AVG, which gloo does not have."""
    if op != dist.ReduceOp.AVG:
        return _all_reduce(tensor, op, *args, **kwargs)
    _all_reduce(tensor, dist.ReduceOp.SUM, *args, **kwargs)
    return tensor.div_(dist.get_world_size(*args[:1]))


dist.init_process_group, dist.all_reduce = _init_gloo, _all_reduce_gloo


def _as_it_is(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """veRL keeps a reference model in pinned memory, which there is only for a GPU to copy from."""
    return tensor


torch.Tensor.pin_memory = _as_it_is


def _logprobs(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """veRL's way without a GPU kernel takes one small operation a token; this is the same value in one operation."""
    flat = torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none")
    return -flat.view(labels.shape)


torch_functional.logprobs_from_logits_v2 = _logprobs


_LAYERS = "vllm.model_executor.layers.utils"


class _KeepWeights(importlib.abc.MetaPathFinder):
    """vLLM on a CPU packs the weights of its linear layers anew and drops the originals, so that new weights have
    nowhere to go, and a tied output layer would keep the old ones. Plain weights are a little slower and can change."""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if name != _LAYERS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        run = spec.loader.exec_module

        def run_and_patch(module: ModuleType) -> None:
            run(module)
            _keep_weights(module)

        spec.loader.exec_module = run_and_patch  # type: ignore[method-assign]
        return spec


def _plain_gemm(layer: Any, remove_weight: bool) -> None:
    layer.cpu_linear = torch.nn.functional.linear


def _keep_weights(layers: ModuleType) -> None:
    layers.dispatch_cpu_unquantized_gemm = _plain_gemm  # type: ignore[attr-defined]


if _LAYERS in sys.modules:  # vLLM's workers import veRL late
    _keep_weights(sys.modules[_LAYERS])
else:  # not imported here: most processes of veRL never need vLLM
    sys.meta_path.insert(0, _KeepWeights())
