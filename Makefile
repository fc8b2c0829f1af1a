# Every door into the project. `make demo` and `make test` do all the set-up they need, as root.
PATH := $(CURDIR)/.venv/bin:$(HOME)/.cargo/bin:$(PATH)
export PATH

.PHONY: help setup demo test unit faults check format lock image clean
help:  ## what there is
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup:  ## system packages, virtual environment, Rust binary
	@scripts/setup

image: setup  ## the base image of the host's own distribution, if it is missing
	@dsec image build --if-missing

demo: image  ## the main job: all HumanEval tasks as rollouts, each in a sandbox of its own
	dsec rollout run humaneval --agent oracle --report reports/demo

test: setup  ## all tests
	@scripts/setup tests
	cargo test --locked -q -p aether
	pytest --durations=15

unit: setup  ## the tests that need no root
	pytest -q tests/unit

faults: setup  ## processes killed at every point there is, by a thousand seeds
	pytest -q tests/faults --fault-seeds=1000

check: setup  ## formatting, types, layering, lints
	ruff check .
	ruff format --check .
	mypy
	lint-imports
	cargo fmt --check
	cargo clippy --locked -q -p aether --all-targets -- -D warnings

format:  ## rewrite the sources in the one format
	ruff check --fix .
	ruff format .
	cargo fmt

lock:  ## resolve the dependencies anew (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-emit-package libdsec \
	    --no-emit-package dsec --no-header --group dev --all-extras pyproject.toml libdsec/pyproject.toml dsec/pyproject.toml \
	    -o requirements.lock
	cargo update -q --workspace

clean:  ## what was built here (not the node's state)
	rm -rf .venv target build reports
