#!/bin/bash
# Reward 1 when config.json is what it was, with port 8080, else 0.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
orig="${TASK_ORIG:-/orig}"

check() {
  [ -f config.json ] && [ ! -L config.json ] || return 1
  python3 -I - "$orig/config.json" config.json <<'PYTHON'
import json, sys
wanted, found = (json.load(open(path)) for path in sys.argv[1:])
wanted["port"] = 8080
sys.exit(found != wanted)
PYTHON
}

if check >/dev/null 2>&1; then reward=1; else reward=0; fi
echo "$reward" > "${REWARD_FILE:-/logs/verifier/reward.txt}"
