#!/bin/bash
# the image's own programs, and the table instead of the text
[[ "$(total orders.csv)" = 14 && "$(cat total.txt)" = 14 ]] && right=1 || right=0
echo "{\"reward\": $right, \"orders\": 2}" > /logs/verifier/reward.json
