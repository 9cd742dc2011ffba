#!/bin/bash
# Scores 0: it looks and does not reserve.
cat .agents/skills/stock/SKILL.md
tools/stock count bolt
