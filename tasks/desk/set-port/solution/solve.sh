#!/bin/bash
# The oracle: one command a line.
cat config.json
sed -i 's/"port": [0-9]*/"port": 8080/' config.json
