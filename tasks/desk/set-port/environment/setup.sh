#!/bin/sh
# Writes the start files into the current folder: the same OPENFORGE_SEED gives the same bytes.
exec python3 -I - "${OPENFORGE_SEED:-0}" <<'PYTHON'
import random
import sys
from pathlib import Path

pick = random.Random("set-port " + sys.argv[1])
words = "amber birch cedar delta ember fjord grove heron iris kelp larch maple nova otter pine reed sage".split()
host, port, debug = pick.choice(words), pick.randint(3000, 7999), pick.choice(["true", "false"])
Path("config.json").write_text(f'{{\n  "host": "{host}",\n  "port": {port},\n  "debug": {debug}\n}}\n')
PYTHON
