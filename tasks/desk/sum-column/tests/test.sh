#!/bin/bash
# Reward 1 when total.txt holds the sum of the second column of sales.csv, else 0.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
orig="${TASK_ORIG:-/orig}"

check() {
  [ -f total.txt ] && [ ! -L total.txt ] || return 1
  [ "$(head -c 100 total.txt)" = "$(awk -F, 'NR > 1 { sum += $2 } END { print sum }' "$orig/sales.csv")" ]
}

if check >/dev/null 2>&1; then reward=1; else reward=0; fi
echo "$reward" > "${REWARD_FILE:-/logs/verifier/reward.txt}"
