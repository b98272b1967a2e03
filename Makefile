# Everything a newcomer needs: `make demo`, `make test`. `make help` lists the rest.
SHELL := /bin/bash
# A distribution's Python is built with profile and link time optimisation: up to 1.7 times as fast as one
# that was compiled without.
PYTHON ?= $(shell for p in /usr/bin/python3.11 /usr/bin/python3.12 /usr/bin/python3.13; do \
  $$p -c 'import ensurepip, venv' 2>/dev/null && echo $$p && exit; done; command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STATE ?= .qim
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: audit sbom help env demo up down test test-fast test-long chaos kill-tests lint format types bench bench-micro docs clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-11s %s\n", $$1, $$2}'

$(VENV)/.ready: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is missing: apt-get install python3 python3-venv"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' \
	  || { echo "$(PYTHON) is not Python 3.11 to 3.13: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "Python's venv module is missing: apt-get install python3-venv"; exit 1; }
	@echo "setting up $(VENV) (first time: about a minute) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[embedded,cassandra,bench,otel,docs,dev]'
	@touch $@

env: $(VENV)/.ready ## make the Python environment

demo: $(VENV)/.ready ## start everything, play real conversations through every level, check, stop
	@$(BIN)/qim demo --state-dir $(STATE)/demo

up: $(VENV)/.ready ## start everything and stay up, with the web views on loopback (Ctrl-C stops)
	@$(BIN)/qim up --web --state-dir $(STATE)/up

down: $(VENV)/.ready ## stop what `make up` started
	@$(BIN)/qim down --state-dir $(STATE)/up

test: $(VENV)/.ready ## all suites: side by side what only uses servers, then the kill tests alone
	@$(BIN)/python -m tests.everyday $(ARGS)

test-fast: $(VENV)/.ready ## only what needs no server
	@$(PYTEST) tests/unit tests/model tests/regressions -m "not slow and not integration" $(ARGS)

test-long: $(VENV)/.ready ## the long forms of the suites
	@$(PYTEST) tests -m slow $(ARGS)

chaos: $(VENV)/.ready ## the kill matrix: every point, killed and paused, about 30 minutes; goes on where it was cut short
	@$(BIN)/python -m tests.chaos.matrix $(ARGS)

kill-tests: $(VENV)/.ready ## the everyday kill tests only
	@$(PYTEST) tests/chaos -m "not slow" $(ARGS)

lint: $(VENV)/.ready ## ruff, formatting, types, layers
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

format: $(VENV)/.ready ## format the code
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

bench: $(VENV)/.ready ## measure in short: hot functions, the whole path, a backlog against the stock style
	@$(BIN)/python -m tests.perf.short $(ARGS)

bench-micro: $(VENV)/.ready ## microbenchmarks of the hot functions only
	@$(BIN)/python -m tests.perf.run $(ARGS)

# Kept apart: what looks at our packages is not one of them.
TOOLS := .tools
$(TOOLS)/.ready: Makefile
	@$(PYTHON) -m venv $(TOOLS)
	@$(TOOLS)/bin/python -m pip install -q --disable-pip-version-check pip-audit==2.10.1 cyclonedx-bom==7.5.0
	@touch $@

# An index that only serves packages knows of no weaknesses, and pip-audit says "not found" of each: nothing was
# looked at, which must not be taken for an answer.
audit: $(VENV)/.ready $(TOOLS)/.ready ## known weaknesses of the packages that are pinned (asks PyPI)
	@said=$$(mktemp); $(TOOLS)/bin/pip-audit --strict --disable-pip --no-deps -r constraints.txt $(ARGS) > $$said 2>&1; \
	  code=$$?; cat $$said; \
	  if grep -qE 'not found on PyPI|ConnectionError|Max retries|timed out' $$said; then code=2; echo; \
	    echo "make audit: NOTHING WAS AUDITED: this machine cannot ask https://pypi.org/pypi/<package>/json (a mirror or"; \
	    echo "a proxy that only serves packages is not enough). Run it where that address answers, or ask the database of"; \
	    echo "OSV, https://api.osv.dev, by: make audit ARGS='-s osv'"; fi; \
	  rm -f $$said; exit $$code

sbom: $(VENV)/.ready $(TOOLS)/.ready ## what is installed, as CycloneDX: sbom.cdx.json
	@$(TOOLS)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o sbom.cdx.json $(BIN)/python
	@echo "sbom.cdx.json: $$($(BIN)/python -c 'import json; print(len(json.load(open("sbom.cdx.json"))["components"]))') components"

docs: $(VENV)/.ready ## write the generated pages, and the reference of the Python API into build/reference
	@$(BIN)/python -m qim_streams.wire.document > docs/protocol.md
	@$(BIN)/python -m docs.reference

clean: ## remove the environment and all state
	@rm -rf $(VENV) $(TOOLS) $(STATE) build sbom.cdx.json
