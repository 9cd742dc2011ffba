# Recipes of this project; `./just` alone lists them.

set positional-arguments

[private]
default:
    @just --list --unsorted

# The whole loop on this machine: harnesses, a small policy, every token in SQL
demo *args:
    @openforge demo "$@"

# A small policy learns inside a real harness, with veRL, on this machine: the curve, then before and after
learn *args:
    @openforge learn "$@"

# The demo in pods, from nothing but Docker: a kind cluster, images, a run, a table, the proof
kind *args:
    @openforge up
    @openforge demo --target kind "$@"

# Remove the cluster and all that runs in it
kind-down:
    @openforge down

# Build the node image from packages (only where no registry has kind's own; about 12 minutes the first time)
node-image:
    @python -m cluster.node_image.build

# What this machine has and what it lacks
doctor *args:
    @openforge doctor "$@"

# Add torch, veRL and vLLM to .venv (about 6 GB; `demo` does it when needed)
train-set:
    @python -m openforge_tui.train_set

# Exactly what CI runs: format, lint, types, imports, tests
check: lint types imports test

# Tests (arguments go to pytest: `./just test -k journal`)
test *args:
    @pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder "$@"

# Format and lint, changing nothing
lint:
    ruff format --check
    ruff check

# Strict types
types:
    mypy

# Arrows between folders point one way
imports:
    lint-imports --no-logo

# Format, and repair what lint can repair
fmt:
    ruff check --fix
    ruff format

# Run one benchmark: `./just bench recorder`
bench name *args:
    @python -m "benchmarks.$@"

# Pictures of the app for the README, from the runs here (or `--project FOLDER`)
screenshots *args:
    @python -m openforge_tui.screenshots "$@"

# Compile requirements/ anew from pyproject.toml
lock:
    requirements/lock

# Remove what tools left behind; runs in .openforge and the shared cache stay
clean:
    rm -rf .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache dist *.egg-info
    find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
