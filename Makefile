# Each target sets up what it needs in build/; `make help` lists them.  Packages of the system are
# named if they are missing, and installed by `make demo` and `make test` only.

PYTHON ?= python3
VARIANT ?= release
SUFFIX = $(if $(filter release,$(VARIANT)),,-$(VARIANT))
VENV = build/venv$(SUFFIX)
BIN = $(VENV)/bin
SOURCES := $(shell find src -name '*.py' -o -name '*.pyi' -o -name '*.pyx' -o -name '*.pxd')
# Build variants never share object files.
SWITCH_debug = RBFLY_DEBUG=1
SWITCH_sanitize = RBFLY_SANITIZE=1
SWITCH_portable = RBFLY_PORTABLE=1
PIP = $(BIN)/python -m pip --disable-pip-version-check -q
# extras and dependency groups of pyproject.toml
REQUIRED ?= perf service test doc
EXAMPLES = build/examples
FUZZ ?= codec --seconds 60
WHEELS ?= all
SANITIZE ?= tests/amqp tests/protocol
SECONDS ?= 3600
SEED ?=
DOING ?= all
ON ?= memory rabbitmq
# Each worker imports all tests, so more workers cost more than they save; loadfile keeps a test file
# on one worker, so that module fixtures are set up once.
WORKERS ?= $(shell n=$$(nproc 2> /dev/null || echo 2); echo $$((n < 4 ? n : 4)))
PARALLEL = -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 2
# Ends a test that holds the GIL, which pytest-timeout cannot; no test may take longer.
WATCHDOG = -o faulthandler_timeout=630 -o faulthandler_exit_on_timeout=true
PYTEST ?= $(BIN)/python -m pytest $(PARALLEL) $(WATCHDOG) $(PYTEST_ARGS)

.DEFAULT_GOAL := help
.PHONY: help build debug demo test nightly quick lint types sanitize fuzz soak hot doc perf wheels brokers-down clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1|\2/' | \
	    while IFS='|' read -r name text; do printf '  make %-14s %s\n' $$name "$$text"; done

# -- set-up

# Else each process would compile what it imports of the checkout.
unexport PYTHONDONTWRITEBYTECODE
export RBFLY_INSTALL ?= 0
demo test: export RBFLY_INSTALL = 1

$(BIN)/python:
	@mkdir -p build
	@PYTHON=$(PYTHON) tools/system-packages build
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install -U pip

$(VENV)/requirements: pyproject.toml $(BIN)/python
	@echo 'installing requirements of the build and of $(REQUIRED) into $(VENV)'
	@$(BIN)/python tools/requirements.py $(REQUIRED) | xargs $(PIP) install
	@touch $@

$(VENV)/linters: $(VENV)/requirements
	@echo 'installing the linters and type checkers into $(VENV)'
	@$(BIN)/python tools/requirements.py lint | xargs $(PIP) install
	@touch $@

$(VENV)/installed: $(SOURCES) setup.py $(VENV)/requirements
	@echo 'building rbfly ($(VARIANT))'
	@# setuptools would install modules again that were deleted since the last build
	@find build -path 'build/$(VARIANT)-*/lib*' -type f ! -name '*.so' -delete
	@find build -path 'build/$(VARIANT)-*/lib*' -name '*.so' ! -name '_cyutility.*' | \
	    while read -r lib; do name=$${lib#*/rbfly/}; [ -e "src/rbfly/$${name%%.*}.pyx" ] || rm "$$lib"; done
	@RBFLY_ANNOTATE=1 $(SWITCH_$(VARIANT)) $(PIP) install --no-build-isolation --no-deps --force-reinstall .
	@touch $@

# -- use

build: $(VENV)/installed  ## build and install into build/venv (VARIANT=debug or sanitize: separate venv)

debug:  ## build with assertions and without optimization into build/venv-debug
	@$(MAKE) --no-print-directory build VARIANT=debug

demo:  ## publish and consume 100,000 messages in memory (BROKER=rabbitmq or RBFLY_URI: on RabbitMQ)
	@$(MAKE) --no-print-directory build VENV=build/venv-demo REQUIRED=demo
	@build/venv-demo/bin/python -m perf demo $(addprefix --broker ,$(BROKER))

test: build  ## run all tests against a real broker (WORKERS=0: in one process)
	@$(PYTEST)

nightly:  ## run everything that .ci/nightly lists, for hours
	@.ci/nightly

quick: build  ## run the tests that need no broker
	@$(PYTEST) -m 'not broker'

lint: $(VENV)/linters  ## run ruff, cython-lint, and zizmor on the workflows
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@PATH=$(BIN):$$PATH cython-lint src fuzz
	@$(BIN)/zizmor --offline --quiet --no-progress .github

types: build $(VENV)/linters  ## run mypy --strict and pyright, and check that all of the package is typed
	@$(BIN)/mypy
	@$(BIN)/python -m mypy.stubtest --ignore-missing-stub --ignore-disjoint-bases --allowlist tools/stubtest.txt $(STUBS)
	@$(BIN)/python -m tests.examples $(EXAMPLES)
	@$(BIN)/mypy --config-file= --cache-dir .mypy_cache/examples --strict $(EXAMPLES)
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --pythonpath $(BIN)/python --warnings
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 PATH=$(abspath $(BIN)):$$PATH \
	    pyright --verifytypes rbfly --ignoreexternal > build/types.log || { cat build/types.log; exit 1; }

sanitize:  ## test the codec and the protocol engine under ASan and UBSan (SANITIZE=tests: everything)
	@$(MAKE) --no-print-directory build VARIANT=sanitize REQUIRED='perf service test'
	@build/venv-sanitize/bin/python tools/sanitize.py -m pytest $(PARALLEL) -p no:faulthandler \
	    $(SANITIZE)

fuzz: $(VENV)/requirements  ## run coverage-guided fuzzing (FUZZ='codec --seconds 60'; or values, stream, ...)
	@tools/system-packages fuzz
	@$(BIN)/python fuzz/run.py $(FUZZ)

soak: build  ## exercise the client under random faults (SECONDS=3600 ON='memory rabbitmq' SEED=)
	@for on in $(ON); do \
	    $(BIN)/python -m proofs soak --seconds $(SECONDS) --doing $(DOING) \
	        $(if $(SEED),--seed $(SEED)) --on $$on || exit 1; \
	done

hot: $(VENV)/requirements  ## check that hot functions make no more Python calls than recorded
	@$(BIN)/python tools/hot.py

doc: build  ## build the documentation into doc/_build/html
	@$(BIN)/sphinx-build -qW --keep-going -b html doc doc/_build/html
	@echo 'doc/_build/html/index.html'

perf: build  ## run a quick benchmark; see also `python -m perf --help`
	@$(BIN)/python -m perf --quick

wheels: build/venv-wheels/wheels  ## build the sdist and all wheels into dist, and test them (WHEELS='build --arch x86_64')
	@build/venv-wheels/bin/python -m tools.wheels $(WHEELS)

build/venv-wheels/wheels: pyproject.toml
	@$(MAKE) --no-print-directory build/venv-wheels/requirements VENV=build/venv-wheels REQUIRED=wheels
	@touch $@

brokers-down: $(BIN)/python  ## stop brokers that are still running
	@$(BIN)/python -m brokers down

clean:  ## remove all build output
	@rm -rf build dist doc/_build src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

STUBS = $(subst /,.,$(patsubst src/%.pyi,%,$(filter %.pyi,$(SOURCES))))
