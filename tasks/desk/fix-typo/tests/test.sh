#!/bin/bash
# Reward 1 when story.txt is what it was with every teh replaced, else 0.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
orig="${TASK_ORIG:-/orig}"

check() {
  [ -f story.txt ] && [ ! -L story.txt ] || return 1
  cmp -s story.txt <(sed 's/teh/the/g' "$orig/story.txt")
}

if check >/dev/null 2>&1; then reward=1; else reward=0; fi
echo "$reward" > "${REWARD_FILE:-/logs/verifier/reward.txt}"
