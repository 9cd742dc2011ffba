"""Wire dialects: pure wire → canonical request, and canonical answer → bytes. One file each."""
