"""The recorder: answers a harness's model calls from the policy being trained, token for token."""
