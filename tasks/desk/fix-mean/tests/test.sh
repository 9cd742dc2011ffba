#!/bin/bash
# Reward 1 when mean() in mean.py is right on lists of numbers that it has not seen, else 0.
untrusted=(env -i PATH=/usr/local/bin:/usr/bin:/bin timeout 10)
if helper=$(command -v untrusted); then untrusted=("$helper"); fi
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
orig="${TASK_ORIG:-/orig}"

check() {
  [ -f mean.py ] && [ ! -L mean.py ] || return 1
  # The agent wrote mean.py: it runs on its own, and only what it prints is looked at. It cannot know n beforehand.
  local n=$((RANDOM + 1)) printed
  local program="import runpy; m = runpy.run_path('mean.py')['mean']; print(m([$n, $n + 2]), m([$n, $n, $n + 6]))"
  printed=$("${untrusted[@]}" python3 -I -B -c "$program" | head -c 200)
  [ "$printed" = "$((n + 1)).0 $((n + 2)).0" ]
}

if check >/dev/null 2>&1; then reward=1; else reward=0; fi
echo "$reward" > "${REWARD_FILE:-/logs/verifier/reward.txt}"
