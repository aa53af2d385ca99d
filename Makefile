# Every target sets up by itself; `make setup` only does something when the pins have changed.

VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PIP    := $(BIN)/python -m pip --disable-pip-version-check
EXTRAS := train,plot,kubernetes,s3,dashboard,track,otel,frameworks,ray,dev
PYTHON ?= $(shell for v in 3.11 3.12 3.13; do \
            python$$v -c pass 2>/dev/null && command -v python$$v && break; done || echo python3)

# Tests start hundreds of processes, and each would compile what it imports again.
unexport PYTHONDONTWRITEBYTECODE

UNUSED := /tests/|/transformers/models/|/ray/(data|llm|rllib|serve|train|tune)/|/pip/|/mypyc?/
UNUSED := $(UNUSED)|/(fontTools|hypothesis|pygments|pytorch_lightning|setuptools|torch/testing)/
UNUSED := $(UNUSED)|/(moto/(ec2|stepfunctions|dynamodb|sagemaker|rds)|transformers/(exporters|pipelines))/
UNUSED := $(UNUSED)|/sympy/(physics|stats|combinatorics|parsing|polys/benchmarks)/|/numpy/distutils/
UNUSED := $(UNUSED)|/jax/(experimental/(mosaic|pallas|sparse)|_src/(internal_test_util|pallas))/
UNUSED := $(UNUSED)|/keras/src/backend/(openvino|torch|jax|numpy)/|/lightning_fabric/
UNUSED := $(UNUSED)|/(torch|tensorboard)/_vendor/|/huggingface_hub/(cli|inference)/|/xgboost/

.PHONY: setup demo test test-tools test-fast trackers lint style gpu bench docs clean

setup: $(STAMP)

# uv installs in seconds what takes pip half a minute. It does not read pip's configuration: an index
# or a folder of wheels that pip is told of is passed on. All that may be imported is compiled, on all
# cores; a third of it is not: tests of others, and parts of packages that nothing of ours uses. What
# cannot be compiled is a template or for another Python.
FROM_PIP = UV_DEFAULT_INDEX="$${UV_DEFAULT_INDEX-$${PIP_INDEX_URL-$$($(PIP) config get global.index-url 2>/dev/null)}}" \
    UV_FIND_LINKS="$${UV_FIND_LINKS-$${PIP_FIND_LINKS-$$($(PIP) config get global.find-links 2>/dev/null)}}"

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet -c constraints.txt uv
	@$(FROM_PIP) $(BIN)/uv pip install --quiet --python $(BIN)/python \
	    -c constraints.txt -e '.[$(EXTRAS)]'
	@$(BIN)/python -m compileall -qq -j 0 -x '$(UNUSED)' $(VENV)/lib || :
	@touch $@

demo: setup
	$(BIN)/python examples/demo/demo.py

lint: style
	$(BIN)/mypy

style: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

# Prometheus with promtool, Alertmanager, Chromium, OpenMPI and MPICH, by Debian's packages where
# this user may install them; no service is started. Tests that need a tool which is missing are skipped, and say so.
TOOLS := promtool:prometheus prometheus-alertmanager:prometheus-alertmanager \
    chromium:chromium mpirun.openmpi:openmpi-bin mpirun.mpich:mpich

test-tools:
	@for tool in $(TOOLS); do \
	    command -v $${tool%:*} >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	    && { timeout 90 apt-get update -qq && RUNLEVEL=1 timeout 240 \
	        apt-get install -y -qq --no-install-recommends $${tool#*:}; } >/dev/null 2>&1; } \
	    || echo "make: $${tool#*:} is not installed and cannot be; its tests are skipped"; done

# Imports and types are checked beside the tests: without a cache types take longer than any of them.
test: setup test-tools
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports & imports=$$!; $(BIN)/mypy & types=$$!; \
	    $(BIN)/python -m pytest -n 6 --dist worksteal; tests=$$?; \
	    wait $$imports && wait $$types && exit $$tests

# The pure core: decisions, vocabulary, journal, most manifests, rules of style. Tests
# marked `slow` start jobs or clusters, and LONG play minutes of many ranks: left to `make test`.
MANIFESTS := checks examples gang golden job jobset kubeflow kueue lint mpijob overlay pod pods \
    render schemas support text trainjob volcano
FAST := controller detection diagnosis goodput shell spec tidy drivers/test_fencing.py \
    operator/test_decide.py operator/federation/test_decide.py test_damage.py test_files.py \
    test_journal.py test_page.py test_replay.py $(MANIFESTS:%=drivers/kubernetes/test_%.py)

LONG := detection/test_stages.py shell/test_exits.py

test-fast: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow' $(FAST:%=tests/%) \
	    $(LONG:%=--ignore=tests/%)

# The packages of Weights & Biases, MLflow and Trackio themselves. They ask for other versions of
# packages than the rest, so they have an environment of their own. Nothing leaves this machine.
TRACKERS := build/trackers/bin/python

trackers: setup
	test -x $(TRACKERS) || $(BIN)/uv venv --quiet --python $(BIN)/python build/trackers
	@$(FROM_PIP) $(BIN)/uv pip install --quiet --python $(TRACKERS) -e '.[track]' \
	    wandb mlflow trackio hypothesis pytest pytest-timeout pytest-xdist
	$(TRACKERS) -m pytest tests/tracking/test_real_trackers.py

# With PYTHON=... that interpreter runs them as it is, and nothing is installed: it works where there
# is no package index. REHEARSE=1 runs them on the CPU. See docs/measurements/README.md.
GIVEN := $(filter command,$(origin PYTHON))

gpu: $(if $(GIVEN),,setup)
	$(if $(GIVEN),$(PYTHON),$(BIN)/python) -m tests.gpu $(if $(REHEARSE),--rehearse)

bench: setup
	set -e; for name in restart overhead instrument controller simulation render watch agents checkpoint peers seeing; do \
	    $(BIN)/python benchmarks/$$name.py --quick; done

docs: setup
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
