"""What veRL 0.9.1 loads from us: a CPU platform, data sets, replay buffers, a checkpoint engine, an optimizer class."""

CPU_ENVIRONMENT = {
    "VERL_USE_EXTERNAL_MODULES": "trainer.verl_plugins.cpu",
    "VERL_PLATFORM": "cpu",
    "THP_MEM_ALLOC_ENABLE": "1",  # torch's: big tensors in huge pages; else a third of an update is page faults
}
