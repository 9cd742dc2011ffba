"""What veRL 0.9.1 loads from us: a CPU platform, a data set of recorded ids, one optimizer class."""

CPU_ENVIRONMENT = {"VERL_USE_EXTERNAL_MODULES": "trainer.verl_plugins.cpu", "VERL_PLATFORM": "cpu"}
