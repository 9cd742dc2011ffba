#!/bin/sh
# Writes the start files into the current folder: the same OPENFORGE_SEED gives the same bytes.
exec python3 -I - "${OPENFORGE_SEED:-0}" <<'PYTHON'
import random
import sys
from pathlib import Path

pick = random.Random("count-errors " + sys.argv[1])
texts = ["disk full", "user logged in", "no error found", "cache warm", "error page sent"]
levels = ["INFO", "WARN", "ERROR", "ERROR"]
lines = [(pick.choice(levels), pick.choice(texts)) for _ in range(pick.randint(10, 35))]
lines[:0] = [("ERROR", "disk full"), ("INFO", "error page sent"), ("WARN", "cache warm")]
Path("server.log").write_text("".join(f"{level} {text}\n" for level, text in lines))
PYTHON
