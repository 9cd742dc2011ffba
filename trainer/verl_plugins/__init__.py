"""What veRL 0.9.1 loads from us: a CPU platform, data sets, replay buffers, a checkpoint engine, an optimizer class."""

_JOB, _CPU = "trainer.verl_plugins.job", "trainer.verl_plugins.cpu"

GPU_ENVIRONMENT = {"VERL_USE_EXTERNAL_MODULES": _JOB}
CPU_ENVIRONMENT = {
    "VERL_USE_EXTERNAL_MODULES": f"{_JOB},{_CPU}",
    "VERL_PLATFORM": "cpu",
    # glibc gives every big tensor back to the system, which clears its pages anew: a third of an update, if let
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TOP_PAD_": str(64 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(16 << 30),
}
