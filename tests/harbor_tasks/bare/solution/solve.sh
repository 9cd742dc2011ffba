#!/bin/sh
sort names.txt > sorted.txt
echo "$GREETING" > greeting.txt
