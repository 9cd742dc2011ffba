#!/bin/bash
# Reward 1 when sorted.txt holds the distinct names of names.txt in order, else 0.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
orig="${TASK_ORIG:-/orig}"

check() {
  [ -f sorted.txt ] && [ ! -L sorted.txt ] || return 1
  cmp -s sorted.txt <(LC_ALL=C sort -u "$orig/names.txt")
}

if check >/dev/null 2>&1; then reward=1; else reward=0; fi
echo "$reward" > "${REWARD_FILE:-/logs/verifier/reward.txt}"
