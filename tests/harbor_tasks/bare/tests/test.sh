#!/bin/sh
# busybox alone: the verifier has what the image has
reward=0
if cmp sorted.txt /tests/sorted.txt && [ "$(cat greeting.txt)" = "good day" ] && [ "$(pwd)" = /srv/desk ]; then
  reward=1
fi
echo $reward > /logs/verifier/reward.txt
