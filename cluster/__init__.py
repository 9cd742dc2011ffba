"""Where rollouts run: runtimes, the orchestrator, grading, the policy server."""
