"""The `openforge` command, one file a verb."""
