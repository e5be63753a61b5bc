# Two commands do everything on a fresh machine: `make demo` and `make test`.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test lint nightly paper barrier clean

demo: $(VENV)/.frown
	$(BIN)/frown demo --out frown-demo

test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

# Property tests with many random examples, and long campaigns against the proofs, the checker and
# the readers; some hours. Shorter ones:
# make nightly EXAMPLES=20 REGIONS=2000 MODELS=500 TRIALS=500 TREES=200 SECONDS=30 EVERY=65537 NETWORKS=50 KILLS=5 BRACKETS=50
EXAMPLES ?= 500
REGIONS ?= 100000
MODELS ?= 10000
TRIALS ?= 10000
TREES ?= 10000
SECONDS ?= 600
EVERY ?= 257
NETWORKS ?= 2000
KILLS ?= 20
BRACKETS ?= 3000
# Each campaign runs whatever became of those before it; the end names those that failed.
NIGHTLY = \
	"-m pytest -n auto --dist worksteal -m hypothesis --hypothesis-profile nightly" \
	"tests/soundness_campaign.py --regions $(REGIONS)" \
	"tests/operators_campaign.py --models $(MODELS)" \
	"tests/tampering_campaign.py --trials $(TRIALS)" \
	"tests/tampering_campaign.py --trees --trials $(TREES)" \
	"tests/branching_campaign.py --networks $(BRACKETS)" \
	"tests/execution_campaign.py --every $(EVERY) --networks $(NETWORKS)" \
	"tests/fuzz_campaign.py --seconds $(SECONDS)" \
	"tests/resume_campaign.py --kills $(KILLS)" \
	"tests/resume_campaign.py --kills $(KILLS) --workers 2"
nightly: $(VENV)/.fuzz
	@failed=0; for campaign in $(NIGHTLY); do \
		echo "== $$campaign"; \
		FROWN_EXAMPLES=$(EXAMPLES) OMP_NUM_THREADS=1 $(BIN)/python $$campaign || \
			{ echo "FAILED: $$campaign"; failed=1; }; \
	done; exit $$failed

# The paper's experiments (docs/paper.md): make paper ARGS="table4 --methods crown,frown --data DIR"
ARGS ?= --help
paper: $(VENV)/.dev
	$(BIN)/python -m benchmarks.paper $(ARGS)

# Both ends of the adversarial error of the convex relaxation barrier's networks over the MNIST test
# set; some CPU hours, and it goes on where it was cut short: make barrier SHARED=DIR ARGS="--images 300"
SHARED ?= $(FROWN_SHARED)
barrier: ARGS =
barrier: $(VENV)/.dev
	OMP_NUM_THREADS=1 FROWN_SHARED="$(SHARED)" $(BIN)/python -m benchmarks.barrier $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.frown: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet -c constraints.txt -e '.[lp]'
	touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/.frown

$(VENV)/.fuzz: $(VENV)/.dev
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev,fuzz]'
	touch $@ $(VENV)/.dev $(VENV)/.frown

clean:
	rm -rf $(VENV) frown-demo frown-examples fuzz-findings build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
