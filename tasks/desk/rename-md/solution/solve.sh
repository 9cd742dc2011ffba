#!/bin/bash
# The oracle: one command a line.
ls docs
for f in docs/*.txt; do mv $f ${f%.txt}.md; done
ls docs
