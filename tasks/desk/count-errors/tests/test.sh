#!/bin/bash
# Reward 1 when answer.txt holds the number of lines of server.log that begin with ERROR, else 0.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
orig="${TASK_ORIG:-/orig}"

check() {
  [ -f answer.txt ] && [ ! -L answer.txt ] || return 1
  [ "$(head -c 100 answer.txt)" = "$(grep -c '^ERROR ' "$orig/server.log")" ]
}

if check >/dev/null 2>&1; then reward=1; else reward=0; fi
echo "$reward" > "${REWARD_FILE:-/logs/verifier/reward.txt}"
