#!/bin/bash
# Reward 1 when below cache every .tmp file is gone and all else is as it was, else 0.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
orig="${TASK_ORIG:-/orig}"

check() {
  [ -d cache ] && [ ! -L cache ] || return 1
  remaining() { (cd "$1" && find . ! -type d ! -name '*.tmp' -exec cksum {} + | sort); }
  [ -z "$(find cache -name '*.tmp')" ] && [ -z "$(find cache -type l)" ] || return 1
  [ "$(remaining cache)" = "$(remaining "$orig/cache")" ]
}

if check >/dev/null 2>&1; then reward=1; else reward=0; fi
echo "$reward" > "${REWARD_FILE:-/logs/verifier/reward.txt}"
