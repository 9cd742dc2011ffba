#!/bin/bash
# The oracle: one command a line.
cat .agents/skills/stock/SKILL.md
tools/stock reserve bolt 5
tools/stock count bolt
