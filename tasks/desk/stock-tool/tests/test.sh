#!/bin/bash
# Reward 1 when the service has 5 bolts less and knows of one reservation, else 0.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
orig="${TASK_ORIG:-/orig}"

check() {
  [ -f tools/stock.json ] && [ ! -L tools/stock.json ] && [ ! -L tools ] || return 1
  python3 -I - "$orig/tools/stock.json" tools/stock.json <<'PYTHON'
import json, sys
wanted, found = (json.load(open(path)) for path in sys.argv[1:])
wanted["items"]["bolt"] -= 5
wanted["reserved"] = [["bolt", 5]]
sys.exit(found != wanted)
PYTHON
}

if check >/dev/null 2>&1; then reward=1; else reward=0; fi
echo "$reward" > "${REWARD_FILE:-/logs/verifier/reward.txt}"
