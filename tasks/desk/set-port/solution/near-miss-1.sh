#!/bin/bash
# Scores 0: another port.
cat config.json
sed -i 's/"port": [0-9]*/"port": 8000/' config.json
