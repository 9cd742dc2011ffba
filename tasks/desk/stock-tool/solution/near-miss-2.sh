#!/bin/bash
# Scores 0: more than there are: the service refuses.
cat .agents/skills/stock/SKILL.md
tools/stock reserve bolt 50
tools/stock count bolt
