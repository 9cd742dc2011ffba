#!/bin/bash
# Scores 0: everything else is gone.
cat config.json
echo '{"port": 8080}' > config.json
