#!/bin/bash
# Scores 0: it copies, so the .txt files stay.
ls docs
for f in docs/*.txt; do cp $f ${f%.txt}.md; done
ls docs
