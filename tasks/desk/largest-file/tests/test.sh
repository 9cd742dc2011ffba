#!/bin/bash
# Reward 1 when largest.txt holds the name of the largest file of data, else 0.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
orig="${TASK_ORIG:-/orig}"

check() {
  [ -f largest.txt ] && [ ! -L largest.txt ] || return 1
  [ "$(head -c 100 largest.txt)" = "$(ls -S "$orig/data" | head -n 1)" ]
}

if check >/dev/null 2>&1; then reward=1; else reward=0; fi
echo "$reward" > "${REWARD_FILE:-/logs/verifier/reward.txt}"
