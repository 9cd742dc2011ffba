"""Where answers come from. One file each."""
