# Two commands matter: `make run` and `make test`. Both install what is missing into .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
AIRFLOW := .venv-airflow
WORKFLOWS := .venv-workflows
CHECK_PYTHON = $(PYTHON) -c 'import sys; ok = (3, 11) <= sys.version_info < (3, 14); sys.exit(0 if ok else "Python 3.11 to 3.13 is needed, $(PYTHON) is " + sys.version.split()[0] + "; give another one: make setup PYTHON=python3.11")'
PIP = -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes
UV = $(BIN)/uv --quiet pip
COMPILE = $(UV) compile --universal --upgrade --generate-hashes --python-version 3.11 --custom-compile-command 'make update'
# If Python keeps no bytecode, every start would compile all packages. This compiles them once.
COMPILED = $(if $(PYTHONDONTWRITEBYTECODE),--compile-bytecode)
unexport PYTHONDONTWRITEBYTECODE
# Extras of pyproject.toml, without xrootd, which installs a compiled client.
EXTRAS := all hls https isal mlflow s3 simulate tensorboard
PIPELINE = $(BIN)/python -m pipeline
NETWORK = hlf
STUDY = thesis-hlf
TEST_PROCESSES = 2
# Programs get the values of users from the environment: neither make nor a shell interprets them. Of a variable `SET` or
# `NETWORK` that is there for another program they get nothing.
USERS := CONFIG SET NETWORK STUDY BENCH TORTURE CLUSTER TEST_PROCESSES
$(foreach name,$(USERS),$(if $(filter-out undefined environment,$(origin $(name))),$(eval export HEP_PIPELINE_$(name) := $$(value $(name)))))
unexport $(USERS)
STAGES := simulate ingest features gridsearch train evaluate export report
COMMANDS := config validate plan status promote track clean
# One process runs all tests of a file. More are faster, and disturb tests of times.
PYTEST = $(BIN)/python -m pytest --numprocesses="$$HEP_PIPELINE_TEST_PROCESSES" --dist=loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Goals depend on each other: also with -j, make keeps the order of the command line.
.NOTPARALLEL:
.PHONY: help setup airflow-setup workflows-setup test-airflow test-cluster test-goals torture java update run $(STAGES) compare $(COMMANDS) rollback doctor test test-fast test-slow bench bench-data bench-reading bench-exchange bench-network bench-workers bench-gridsearch bench-inference bench-stragglers bench-many-events bench-memory browser lint format

help: ## List the goals
	@grep -hE '^[a-z_-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | awk -F '\t' '{printf "  %-18s%s\n", $$1, $$2}'
	@echo
	@echo "  CONFIG=my.yaml chooses a config (default: demo), SET='train.epochs=5 train.workers=1' overrides values."

setup: $(VENV)/.installed java ## Install everything into .venv (done by the other targets when needed)

# pip installs uv and, if its settings allow, torch without CUDA; uv installs the rest, ten times as fast. The locks are
# complete, so nothing is resolved.
$(VENV)/.installed: requirements.lock requirements-cpu.lock requirements-cuda.lock pyproject.toml
	@$(CHECK_PYTHON)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	sed -n '/^uv==/,/# via/p' requirements.lock > $(VENV)/uv.txt
	$(BIN)/python $(PIP) -r $(VENV)/uv.txt
	if $(BIN)/python $(PIP) --no-compile -r requirements-cpu.lock 2>/dev/null; then torch=cpu; else torch=cuda; fi; \
	$(UV) install --python $(BIN)/python --no-deps --require-hashes $(COMPILED) -r requirements.lock -r requirements-$$torch.lock
	$(UV) install --python $(BIN)/python --no-deps --no-build-isolation --editable .
	$(UV) check --python $(BIN)/python
	$(BIN)/python -m training.compiled & $(BIN)/python -m features && wait $$!
	touch $@

update: setup ## Lock the newest versions that pyproject.toml allows, install them, run the tests
	$(COMPILE) --no-emit-package torch --group dev $(EXTRAS:%=--extra %) pyproject.toml -o requirements.lock
	sed -n 's/.*"\(torch==.*\)".*/\1/p' pyproject.toml | $(COMPILE) --no-config -c requirements.lock - -o requirements-cuda.lock
	echo apache-airflow | $(COMPILE) --no-config - -o requirements-airflow.lock
	printf '%s\n' snakemake law 'htcondor<25' | $(COMPILE) --no-config - -o requirements-workflows.lock
	$(MAKE) update-docs test

airflow-setup: $(AIRFLOW)/.installed ## Install Airflow into .venv-airflow, separate from the pipeline (see docs/operations.md)

$(AIRFLOW)/.installed: requirements-airflow.lock
	@$(CHECK_PYTHON)
	test -x $(AIRFLOW)/bin/python || $(PYTHON) -m venv $(AIRFLOW)
	$(AIRFLOW)/bin/python $(PIP) -r requirements-airflow.lock
	$(AIRFLOW)/bin/python -m pip check
	touch $@

workflows-setup: $(WORKFLOWS)/.installed ## Install Snakemake, law and HTCondor's bindings into .venv-workflows, for the tests of their examples

$(WORKFLOWS)/.installed: requirements-workflows.lock $(VENV)/.installed
	test -x $(WORKFLOWS)/bin/python || $(PYTHON) -m venv $(WORKFLOWS)
	$(UV) install --python $(WORKFLOWS)/bin/python --no-deps --require-hashes -r requirements-workflows.lock
	touch $@

java:
	@sh pipeline/machine/ensure_java.sh

run: setup ## Run all stages that are stale
	$(PIPELINE) run

simulate: setup ## Make events: Pythia and a fast detector to ROOT files
ingest: setup ## ROOT files to events Parquet
features: setup ## Events to features Parquet
gridsearch: setup ## Try perceptrons by cross-validation: table, plot, best.json
train: setup ## Train the networks
evaluate: setup ## Predict the test split; metrics and plots
export: setup ## The networks as ONNX for the trigger
report: setup ## One HTML page of the whole run
$(STAGES):
	$(PIPELINE) $@

compare: setup ## Compare optimisers: the claims of a paper, tables, figures (STUDY=thesis-hlf, or all; see docs/comparison.md)
	$(PIPELINE) ingest
	$(PIPELINE) features
	$(PIPELINE) compare --study "$$HEP_PIPELINE_STUDY"

config: setup ## Show every value of the config and where it comes from
validate: setup ## Check the config and its input files
plan: setup ## Say what would run, and why
status: setup ## Show the versions and models in use
promote: setup ## Put the trained networks in use, if they are better than those in use
track: setup ## Log the trained and evaluated networks to MLflow (mlflow.uri; needs the extra `mlflow`)
clean: setup ## Remove old versions that nothing in use needs
$(COMMANDS):
	$(PIPELINE) $@

rollback: setup ## Put the previous model back in use (NETWORK=hlf)
	$(PIPELINE) rollback "$$HEP_PIPELINE_NETWORK"

doctor: setup ## Check this machine
	$(PIPELINE) doctor

$(VENV)/spark.jsa: $(VENV)/.installed
	PYTHONPATH=.:tests/helpers $(BIN)/python tests/helpers/class_archive.py $@

browser:
	@sh tests/ensure_browser.sh

# The README and CONTRIBUTING.md say the same time.
TEST_TIME := 10 to 30 minutes on two cores

about-test:
	@echo 'These are the tests of every part on small inputs: physics, networks, training methods in the simulator and on MPI ranks,'
	@echo 'Spark jobs, whole runs from ROOT files to the report. They take about $(TEST_TIME); make test-fast takes one'
	@echo 'minute, without Spark, MPI and whole runs. Kills, full disks and clusters: make test-slow.'

test: about-test setup $(VENV)/spark.jsa ## Run the tests, except those that the next goals run
	$(PYTEST) -m "not minutes and not airflow and not cluster and not goals"

test-slow: setup browser workflows-setup $(VENV)/spark.jsa ## Run the tests that need minutes of real processes: kills, full disks, clusters, a browser
	$(PYTEST) -m "minutes and not cluster"

test-goals: setup $(VENV)/.docs-installed ## Run benchmarks and the site at their smallest size (five minutes)
	$(BIN)/python -m pytest -m goals tests/test_goals.py

test-airflow: setup airflow-setup ## Run the DAG in a real Airflow (minutes)
	$(BIN)/python -m pytest -m airflow

test-cluster: setup ## Run on hosts in network namespaces: ssh, SLURM, standalone Spark, servers of files (as root; a quarter of an hour)
	$(BIN)/python -m pytest -m cluster tests/cluster $$HEP_PIPELINE_CLUSTER

# Folders without any of these are not even read.
test-fast: setup ## Run the tests without JVM, MPI and command line, and the examples in docstrings
	$(PYTEST) $(patsubst %,--ignore=tests/%,airflow benchmarks cluster distributed) -m "not slow and not spark and not distributed and not end_to_end and not minutes and not airflow and not cluster and not goals"

torture: setup ## Kill every stage forty times, spoil 1,200 ROOT files (an hour; TORTURE='--rounds 1 --first-seed 17' is quicker)
	$(BIN)/python -m pytest --rounds=20 --first-seed="$$(date +%s)" tests/integration/test_killed_runs.py tests/property/test_fuzz_inputs.py $$HEP_PIPELINE_TORTURE

bench: setup ## Measure everything (two hours; bench-data, -many-events, -memory, -reading, -exchange, -network, -workers, -stragglers, -gridsearch, -inference are its parts)
	HEP_PIPELINE_BENCH= $(MAKE) BENCH= bench-workers bench-stragglers bench-exchange bench-network bench-gridsearch bench-inference bench-reading bench-data bench-memory bench-many-events

bench-data: setup ## Measure: ROOT to features (half an hour; BENCH='--events 2000 12000 --repeats 3' is quicker)
	$(BIN)/python tests/benchmarks/root_to_features.py $$HEP_PIPELINE_BENCH

bench-many-events: setup ## Measure: features of few and of many events (BENCH='--events 30000 1000000' needs 60 GB of disk)
	PYTHONPATH=tests/helpers $(BIN)/python tests/benchmarks/many_events.py $$HEP_PIPELINE_BENCH

bench-memory: setup ## Measure: memory of each stage of the demo, under a limit of 750 MiB (needs the rights of root)
	PYTHONPATH=tests/helpers $(BIN)/python tests/benchmarks/stage_memory.py $$HEP_PIPELINE_BENCH

bench-reading: setup ## Measure: petastorm and arrow readers
	PYTHONPATH=tests/helpers $(BIN)/python -W ignore tests/benchmarks/reading.py $$HEP_PIPELINE_BENCH

bench-exchange: setup ## Measure: pairwise averages between two ranks
	$(BIN)/python tests/benchmarks/exchange.py $$HEP_PIPELINE_BENCH

bench-stragglers: setup ## Measure: training while one of four ranks is stopped for most of the time
	PYTHONPATH=tests/helpers $(BIN)/python tests/benchmarks/stragglers.py $$HEP_PIPELINE_BENCH

bench-network: setup ## Measure: training between hosts, with and without a delay of the network (needs the rights of root)
	PYTHONPATH=tests/helpers $(BIN)/python tests/benchmarks/network.py $$HEP_PIPELINE_BENCH

bench-gridsearch: setup ## Measure: trainings side by side against one after the other
	$(BIN)/python tests/benchmarks/gridsearch.py $$HEP_PIPELINE_BENCH

bench-inference: setup ## Measure: one event and batches through the exported networks
	PYTHONPATH=tests/helpers $(BIN)/python tests/benchmarks/inference.py $$HEP_PIPELINE_BENCH

bench-workers: setup ## Measure: training on one and two workers, the simulator (BENCH='--only simulator' is a part)
	PYTHONPATH=tests/helpers $(BIN)/python tests/benchmarks/workers.py $$HEP_PIPELINE_BENCH

.PHONY: docs notebooks update-docs
# Not with --quiet, which hides the warnings that --strict counts.
docs: $(VENV)/.docs-installed ## Build the documentation into build/site, with a reference from the code and the report of the demo; broken links are errors
	$(PIPELINE) run --config demo
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo build/site/index.html

notebooks: setup $(VENV)/.docs-installed ## Run the demo if it is stale, then the notebooks of docs/examples on it
	$(PIPELINE) run --config demo
	$(BIN)/python -m nbconvert --log-level=WARN --to notebook --execute --inplace --ExecutePreprocessor.record_timing=False \
		--ExecutePreprocessor.extra_arguments=--log-level=ERROR docs/examples/*.ipynb
	$(BIN)/ruff format --quiet docs/examples

# Installed into the same environment: the site imports the code, and the notebooks run it.
$(VENV)/.docs-installed: $(VENV)/.installed requirements-docs.lock
	$(UV) install --python $(BIN)/python --no-deps --require-hashes -r requirements-docs.lock -c requirements.lock
	touch $@

update-docs: setup ## Lock the newest versions of the packages for the site, compatible with requirements.lock
	$(subst 'make update','make update-docs',$(COMPILE)) --group docs -c requirements.lock -o requirements-docs.lock

lint: setup ## Formatting, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
