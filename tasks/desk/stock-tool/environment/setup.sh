#!/bin/sh
# Writes the start files into the current folder: the same OPENFORGE_SEED gives the same bytes.
exec python3 -I - "${OPENFORGE_SEED:-0}" <<'PYTHON'
import json
import random
import sys
from pathlib import Path

pick = random.Random("stock-tool " + sys.argv[1])
skill = """\
---
name: stock
description: Look up and reserve items of the stock with the command tools/stock.
---
tools/stock list
tools/stock count ITEM
tools/stock reserve ITEM NUMBER
"""
command = """\
#!/usr/bin/env python3
'The command line of the stock service; it starts the service when nobody answers.'
import os
import socket
import subprocess
import sys
import time

here = os.path.dirname(os.path.abspath(__file__))
os.chdir(os.environ.get("HOME", "."))  # the socket lives here: one service a home
for attempt in range(100):
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(".stockd")
        break
    except OSError:
        if attempt == 0:
            quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            subprocess.Popen([sys.executable, "-I", os.path.join(here, "stockd.py")], **quiet)
        time.sleep(0.05)
else:
    sys.exit("stock: the service does not answer")
link.sendall(" ".join(sys.argv[1:]).encode() + bytes([10]))
print(link.makefile().read().strip())
"""
service = """\
'The stock service: one request a connection on $HOME/.stockd, state in stock.json; ends when idle for 20 s.'
import json
import os
import socket

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "stock.json")


def answer(words):
    with open(path) as file:
        state = json.load(file)
    match words:
        case ["list"]:
            return " ".join(sorted(state["items"]))
        case ["count", item] if item in state["items"]:
            return str(state["items"][item])
        case ["reserve", item, number] if item in state["items"] and number.isdigit():
            if int(number) > state["items"][item]:
                return "refused: not enough " + item
            state["items"][item] -= int(number)
            state["reserved"].append([item, int(number)])
            with open(path + ".new", "w") as file:
                json.dump(state, file)
            os.replace(path + ".new", path)
            return "reserved " + number + " " + item
    return "usage: tools/stock list | count ITEM | reserve ITEM NUMBER"


os.chdir(os.environ.get("HOME", "."))
server = socket.socket(socket.AF_UNIX)
if os.path.exists(".stockd"):
    os.unlink(".stockd")
server.bind(".stockd")
server.listen()
server.settimeout(20)
try:
    while True:
        link, _ = server.accept()
        with link:
            link.settimeout(5)
            link.sendall(answer(link.makefile().readline().split()).encode())
except TimeoutError:
    os.unlink(".stockd")
"""
names = "anchor bracket clamp dowel flange gasket hinge latch".split()
items = {name: pick.randint(1, 99) for name in pick.sample(names, 3)} | {"bolt": pick.randint(12, 49)}
for folder in (".agents/skills/stock", "tools"):
    Path(folder).mkdir(parents=True)
Path(".agents/skills/stock/SKILL.md").write_text(skill)
Path("tools/stock").write_text(command)
Path("tools/stock").chmod(0o755)
Path("tools/stockd.py").write_text(service)
Path("tools/stock.json").write_text(json.dumps({"items": items, "reserved": []}))
PYTHON
