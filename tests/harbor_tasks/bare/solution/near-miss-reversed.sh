sort -r names.txt > sorted.txt
echo "$GREETING" > greeting.txt
