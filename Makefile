# `make demo` and `make test` are all a new user needs; `make help` lists the rest.
PYTHON ?= python3
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export DVC_NO_ANALYTICS := 1
export MLFLOW_DISABLE_TELEMETRY := true
export DO_NOT_TRACK := 1
# Without bytecode every process compiles what it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: audit benchmark changed check demo docs docs-numbers env format gpu help hooks lint lock mutants publish report sbom schemas size smoke \
	style test test-all test-system types ui units

# What runs whole workflows, a cluster, a browser or many processes, or kills and starves them; other tests are of units.
SYSTEM := workflow or slurm or browser or faults or processes
PYTEST := OMP_NUM_THREADS=1 .ci/in_memory pytest -n auto
# Whole workflows also wait, for daemons, locks and clocks: one worker more than there are processors.
ONE_MORE := -n $$(($$(getconf _NPROCESSORS_ONLN) + 1))
# Tools that install the rest, or look at it, are pinned here; everything else in requirements.lock.
UV := uv==0.13.9
AUDIT := pip-audit==2.10.1
SBOM := cyclonedx-bom==7.5.0
PINS := --quiet --universal --extra test --no-emit-index-url --no-annotate --no-header
# `make env LOCK=requirements.hashed.lock` refuses packages with other contents than those pinned.
LOCK ?= requirements.lock
PARALLEL := $(MAKE) --no-print-directory --jobs 3

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: .venv/.installed ## create .venv with the pinned packages

.venv/.installed: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(v < (3, 11) and "Python 3.11 or newer is needed; this is %d.%d. Try: make PYTHON=python3.12 $(MAKECMDGOALS)" % v)'
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check $(UV)
	.venv/bin/uv pip install --quiet --python .venv/bin/python --compile-bytecode -r $(LOCK)
	.venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps --editable .
	touch $@

demo: env ## prepare the embedded datasets, train, evaluate, report (minutes)
	snakemake

smoke: env ## every seam of the workflow, in about a minute
	snakemake --config experiments=smoke

check: env ## while you work: linters, types, the quick tests of what changed since main
	@$(PARALLEL) style types changed

test: env ## linters, types and every test of a unit; COVER=yes also says which lines they ran
	@$(PARALLEL) style types units
	$(if $(COVER),@.ci/coverage.py)

test-all: export KILLS := 30
test-all: test test-system ## everything: `make test`, then whole workflows, SLURM, browser and faults

test-system: env ## real Snakemake, DVC, SLURM and browser; processes killed, disks full, files damaged
	$(PYTEST) $(ONE_MORE) --dist loadgroup -m "$(SYSTEM)"

style: env
	@ruff check . && ruff format --check . && snakefmt --check Snakefile workflow/rules

types: env
	@mypy

units: env
	@$(PYTEST) --dist worksteal -m "not ($(SYSTEM))" $(if $(COVER),--cov --cov-report=)

changed: env
	@tests="$$(.ci/changed.py)"; test -z "$$tests" || $(PYTEST) --dist worksteal -q -m "not (slow or $(SYSTEM))" $$tests || test $$? = 5  # none of them is quick

lint: style types ## linters, type checker, snakemake --lint
	snakemake --lint

mutants: env ## hours: which small mistakes in critical modules no test notices; ONLY="*statistics*" for some of them
	OMP_NUM_THREADS=1 mutmut run $(if $(ONLY),"$(ONLY)") && mutmut results

hooks: env ## let Git run linters, types and the link check before every commit
	pre-commit install

format: env ## put the code into house format
	ruff check --fix . ; ruff format . ; snakefmt Snakefile workflow/rules

ui: env ## browse the runs in the MLflow UI (http://127.0.0.1:5000)
	probmetric ui

report: env ## snakemake's own report with provenance: report.zip
	snakemake --report report.zip

docs: env ## the documentation as a site: site-docs/index.html
	NO_MKDOCS_2_WARNING=1 mkdocs build --quiet

publish: env ## all pages and the theory figures as a static site, to open from disk or to upload: site/
	probmetric publish

benchmark: env ## speed of the hot paths on this machine, against named peers
	for file in benchmarks/[!_]*.py; do python $$file || exit 1; done

lock: env ## pin the dependencies of pyproject.toml in requirements.lock, and with hashes in requirements.hashed.lock
	.venv/bin/uv pip compile $(PINS) pyproject.toml -o requirements.lock
	.venv/bin/uv pip compile $(PINS) --generate-hashes --constraint requirements.lock pyproject.toml -o requirements.hashed.lock

sbom: env ## bill of materials of the environment, with licences: sbom.json (CycloneDX)
	.venv/bin/uv tool run --from $(SBOM) cyclonedx-py environment .venv/bin/python --output-file sbom.json

gpu: env ## what needs a CUDA device: its tests, then training and losses measured on it
	pytest -n 0 -m gpu
	python benchmarks/training.py --device cuda && python benchmarks/losses.py --device cuda

audit: env ## known vulnerabilities of the pinned packages (asks the package index), secrets in the repository
	pytest -q -n0 tests/security/test_secrets.py
	.venv/bin/uv tool run --from $(AUDIT) pip-audit --requirement requirements.lock --no-deps --disable-pip

size: ## code lines of the package by room, private modules, long parameter lists, import circles
	@$(PYTHON) .ci/size.py

docs-numbers: env ## numbers in the tables of docs/ that are not those of their records
	.venv/bin/python .ci/docs_numbers.py

schemas: env ## catalogue of components; JSON schemas of params.yaml and experiment files, for editors
	probmetric schema
	.venv/bin/python .ci/doc_tables.py
