# The house keeps itself: `make test` is what CI runs, on a bare checkout as well as on a used one.
# PYTHON: which interpreter the environment is made of, 3.11 or newer.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PLUGINS := $(sort $(wildcard plugins/*/pyproject.toml))
PLUGIN_DIRS := $(PLUGINS:/pyproject.toml=)
SOURCES := $(wildcard plugins/*/src)
TESTS := $(wildcard plugins/*/tests)
# One run of mypy for each: their conftest.py, below directories with a hyphen, are all one module to it.
TEST_FOLDERS := $(sort $(dir $(wildcard plugins/*/tests/*.py plugins/*/tests/*/*.py)))
PYTEST_ARGS ?=
# How many files of tests run at the same time: those with real daemons and servers mostly wait.
WORKERS ?= 3
MAKEFLAGS += --no-print-directory

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv lint format typecheck test pytest check years endurance test-kubernetes snapshot clean

help: ## what there is to do
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

venv: $(READY) ## the environment, made anew when a pyproject.toml changes

# The tools are read from [dependency-groups] by our own three lines: only a recent pip can read them itself.
$(READY): pyproject.toml $(PLUGINS)
	rm -rf $(VENV)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["dev"], sep="\n")' > $(VENV)/tools.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $(VENV)/tools.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -e . $(addprefix -e ./,$(PLUGIN_DIRS))
	touch $@

lint: $(READY) ## ruff, its formatter, mypy --strict, the layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) typecheck
	$(BIN)/lint-imports

typecheck: $(READY) ## mypy --strict alone
	$(BIN)/mypy cronstable $(SOURCES) conftest.py
	$(BIN)/mypy tests
	@for folder in $(TEST_FOLDERS); do $(BIN)/mypy $$folder*.py || exit 1; done

format: $(READY) ## put the sources into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

pytest: $(READY) ## the tests alone; PYTEST_ARGS="tests/unit -x"
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(PYTEST_ARGS)

# Both halves run, whatever the first one says, and the last line is pytest's.
test: $(READY) ## everything: lint, then all tests
	@status=0; $(MAKE) lint || status=$$?; $(MAKE) pytest || status=$$?; exit $$status

check: $(READY) ## the quick half: lint and the tests that need no server
	$(MAKE) lint
	$(BIN)/python -m pytest -m "not integration" tests/unit tests/architecture $(TESTS)

# REPEATS: how often each live test is run after the long rounds; flaky is broken.
REPEATS ?= 50
# SEEDS: on how many seeds the simulator tries each backend; two thousand are half a cluster-month.
SEEDS ?= 2000

# YEARS: of a simulated cluster, a month at a time, the backends taking turns.
YEARS ?= 10

years: $(READY) ## ten simulated cluster-years under faults, in two processes (about ten minutes)
	$(BIN)/python -m cronstable simulate -c tests/cases/simulator/year.yaml --years $(YEARS) --backend each --faults all --fault-every 9000 --fault-spell 3 --failing 0.05

endurance: $(READY) ## ten faults of each kind on real daemons, thousands of simulations, the live tests fifty times (hours)
	$(MAKE) years
	CRONSTABLE_ENDURANCE_ROUNDS=10 $(BIN)/python -m pytest tests/live
	CRONSTABLE_SIM_SEEDS=$(SEEDS) $(BIN)/python -m pytest tests/unit/testing/sim
	for i in $$(seq $(REPEATS)); do $(BIN)/python -m pytest -q -x tests/live || exit 1; done

# Debian's kube-apiserver, built once into ~/.cache (a few minutes); with KUBECONFIG set that cluster serves instead, and
# Leases named contract-* and test-* come and go in the namespace of its context.
test-kubernetes: $(READY) ## the tests that need a real apiserver; KUBECONFIG=... names one of your own
ifdef KUBECONFIG
	CRONSTABLE_KUBECONFIG="$(KUBECONFIG)" $(BIN)/python -m pytest -m kubernetes plugins/cronstable-k8s $(PYTEST_ARGS)
else
	server=$$(sh plugins/cronstable-k8s/tests/servers/build-apiserver.sh) && \
	CRONSTABLE_KUBE_APISERVER=$$server $(BIN)/python -m pytest -m kubernetes plugins/cronstable-k8s $(PYTEST_ARGS) && \
	CRONSTABLE_KUBE_APISERVER=$$server $(BIN)/python -m pytest tests/live/test_kubernetes.py $(PYTEST_ARGS)
endif

snapshot: $(READY) ## write the record of the public surface anew, after an intended change
	CRONSTABLE_WRITE_SNAPSHOTS=1 $(BIN)/python -m pytest tests/architecture/test_public_surface.py

clean: ## away with everything that was made here
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# -- the demo ---------------------------------------------------------------------------------------------------------

.PHONY: demo demo-etcd demo-gossip demo-grand-tour demo-cluster-large demo-kubernetes docs
NODES ?= 3

demo: $(READY) ## three daemons elect a leader and you take it away; DEMO_SCRIPT="wait 5; kill; wait 10; quit" needs no keys
	@$(BIN)/python example/demo/demo.py

demo-gossip: $(READY) ## the same without a store, peer to peer, with drift, conflict, growth to five; NODES=5 for more of them
	@$(BIN)/python example/demo/demo.py --backend gossip --nodes $(NODES)

demo-grand-tour: $(READY) ## peer to peer, five nodes, every job a node of its own (the twin of example/grand-tour)
	@$(BIN)/python example/demo/demo.py --backend gossip --nodes 5 --spread

demo-cluster-large: $(READY) ## the same with ten nodes (the twin of example/cluster-large)
	@$(BIN)/python example/demo/demo.py --backend gossip --nodes 10 --spread

demo-etcd: $(READY) ## the same over an etcd of its own (needs etcd-server), which you can take away too
	@$(BIN)/python example/demo/demo.py --backend etcd

demo-kubernetes: $(READY) ## the same over a stand-in for an apiserver, which you can take away too
	@$(BIN)/python example/demo/demo.py --backend kubernetes

docs: $(READY) ## write tables and code of docs/ anew, after a change of a schema or an example
	$(BIN)/python docs/build.py
