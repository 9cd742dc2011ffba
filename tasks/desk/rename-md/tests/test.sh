#!/bin/bash
# Reward 1 when each .txt file of docs is now an .md file with the same content and nothing else changed, else 0.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
orig="${TASK_ORIG:-/orig}"

check() {
  [ -d docs ] && [ ! -L docs ] || return 1
  wanted=$(cd "$orig/docs" && ls -A | sed 's/\.txt$/.md/' | sort)
  [ "$(cd docs && ls -A | sort)" = "$wanted" ] || return 1
  for file in "$orig"/docs/*; do
    name=$(basename "$file" | sed 's/\.txt$/.md/')
    [ ! -L "docs/$name" ] && cmp -s "$file" "docs/$name" || return 1
  done
}

if check >/dev/null 2>&1; then reward=1; else reward=0; fi
echo "$reward" > "${REWARD_FILE:-/logs/verifier/reward.txt}"
