#!/bin/sh
# Writes the start files into the current folder: the same OPENFORGE_SEED gives the same bytes.
exec python3 -I - "${OPENFORGE_SEED:-0}" <<'PYTHON'
import random
import sys
from pathlib import Path

pick = random.Random("sum-column " + sys.argv[1])
words = "amber birch cedar delta ember fjord grove heron iris kelp larch maple nova otter pine reed sage".split()
rows = [f"{pick.choice(words)},{pick.randint(2, 90)},{pick.randint(100, 900)}" for _ in range(pick.randint(4, 15))]
Path("sales.csv").write_text("\n".join(["item,amount,price", *rows]) + "\n")
PYTHON
