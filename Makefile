# Everything a developer does, each from nothing but git, make and Python 3.11+.
# Extra arguments go into ARGS: make test ARGS="-k lease -x"

PYTHON ?= python3
ARGS   ?=

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
UV    := .lock-venv/bin/uv

.DEFAULT_GOAL := help

.PHONY: help
help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-19s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: venv
venv: $(STAMP)  ## set up .venv with the locked dependencies

# The stamp lies inside the environment, so removing .venv also removes it.
$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    found=$$($(PYTHON) --version 2>/dev/null); \
	    echo "Fasti needs Python 3.11 or newer; '$(PYTHON)' is $${found:-not there}." >&2; \
	    echo "Name another one with: make PYTHON=/path/to/python3.11 ..." >&2; \
	    exit 1; }
	@$(BIN)/python -c 'import pip' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: demo
demo: $(STAMP)  ## see Fasti at work
	$(BIN)/fasti demo $(ARGS)

.PHONY: test
test: $(STAMP)  ## run the tests, without the long ones
	$(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder $(ARGS)

.PHONY: test-long
test-long: $(STAMP)  ## run all tests, the long ones too, with more generated examples; then with four shards
	HYPOTHESIS_PROFILE=long $(BIN)/pytest -m "" --timeout 3600 $(ARGS)
	$(BIN)/pytest tests/integration tests/shards tests/spark -m "" --timeout 3600 --shards 4 $(ARGS)

.PHONY: faults
faults: $(STAMP)  ## break the machine, the files and the clients on purpose, and print what came of it
	$(BIN)/pytest tests/faults -m "" --fault-table $(ARGS)

.PHONY: check
check: $(STAMP)  ## lint, check the format, the types (also of the docs' examples) and the import rules
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m tests.types.check
	$(BIN)/lint-imports

.PHONY: format
format: $(STAMP)  ## put the code into its format and fix what can be fixed
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

.PHONY: bench
bench: $(STAMP)  ## measure the engine on this machine
	$(BIN)/fasti bench engine $(ARGS)

.PHONY: bench-peers
bench-peers: $(STAMP)  ## measure Fasti beside its peers, and write docs/benchmarks.md
	$(BIN)/fasti bench peers --page $(ARGS)

.PHONY: bench-peers-install
bench-peers-install:  ## install the peers: servers as Debian packages, clients into .peers-venv
	benchmarks/peers/install.sh $(PYTHON)

MINUTES ?= 60

.PHONY: soak
soak: $(STAMP)  ## clients come, go and are killed for MINUTES; the broker must not grow
	$(BIN)/fasti bench soak --minutes $(MINUTES) $(ARGS)

SEED ?= 1

.PHONY: chaos
chaos: $(STAMP)  ## break a cluster at random for MINUTES, from SEED, and check every promise
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) --seed $(SEED) $(ARGS)

.PHONY: docs
docs: $(STAMP)  ## write the pages that are made from the code
	$(BIN)/python docs/generate.py

.PHONY: aio
aio: $(STAMP)  ## write the classes of fasti.aio that are made from those of fasti.client
	$(BIN)/python tools/write_aio.py

.PHONY: lock
lock: $(UV)  ## write requirements.lock anew (ARGS=--upgrade takes newer versions)
	$(UV) pip compile pyproject.toml --extra all --group dev --output-file requirements.lock \
	    --universal --python-version 3.11 --fork-strategy fewest \
	    --generate-hashes --no-emit-index-url --no-emit-find-links \
	    --custom-compile-command "make lock" --quiet $(ARGS)

$(UV):
	$(PYTHON) -m venv --clear .lock-venv
	.lock-venv/bin/pip install --quiet uv

.PHONY: clean
clean:  ## remove the environments, caches and builds
	rm -rf $(VENV) .lock-venv .peers-venv build dist .cache .hypothesis
	rm -rf .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
