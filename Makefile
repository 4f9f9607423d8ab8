# The one entry: `make demo` and `make test` work on a fresh machine with Python 3.11+, a Rust toolchain and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
DEBIAN := nats-server chromium
PARALLEL := --numprocesses auto --dist worksteal
RUST   := $(shell find rust -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock

.DEFAULT_GOAL := help
.PHONY: help setup system-packages engines demo test test-unit test-rust lint format docs bench soak fuzz tsan clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/ #/' | column -t -s '#'

$(VENV)/.ready: constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo '$(PYTHON) is not Python 3.11 or newer; name one that is: make PYTHON=python3.11 ...' >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r requirements-dev.txt
	@touch $@

# An editable install: Python from src/, the extension rebuilt when Rust changes.
$(VENV)/.built: $(VENV)/.ready $(RUST)
	PIP_QUIET=1 $(BIN)/maturin develop --release --quiet
	@touch $@

setup: $(VENV)/.built  ## the environment in .venv with kvevents built into it

system-packages:  ## Debian packages that some tests need (as root; elsewhere those tests are skipped, in CI they fail)
	@missing=; for package in $(DEBIAN); do \
		dpkg -s $$package >/dev/null 2>&1 || missing="$$missing $$package"; \
	done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" != 0 ]; then echo "not root: as root, apt-get install$$missing" >&2; exit 0; fi; \
	apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install $$missing

engines: setup  ## the published packages of SGLang and vLLM (170 MB), for the tests of the plugins; without them those are skipped
	$(BIN)/python -m benchmarks.engines

demo: setup  ## replay a real trace through four engines, round robin and KV-aware
	$(BIN)/kvevents demo

test: test-rust test-unit  ## every test
	$(BIN)/python -m pytest tests/golden tests/property $(PARALLEL)
	$(BIN)/python -m pytest -m integration

test-unit: setup  ## the fast part: no processes, no sockets, no long searches
	$(BIN)/python -m pytest tests/unit tests/chaos tests/soak -m "not integration" $(PARALLEL)

test-rust:  ## tests of the core crate, a short fuzz campaign among them
	cargo test --quiet --locked -p kvevents-core -p kvevents-fuzz -p kvevents-load

lint: setup  ## formats, lints, types, stubs
	cargo fmt --check
	cargo clippy --quiet --locked --workspace --all-targets -- -D warnings
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest kvevents._core --mypy-config-file pyproject.toml --allowlist .mypy-stubtest-allowlist --ignore-unused-allowlist

format:  ## format everything
	cargo fmt
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

docs: setup  ## the documentation as a site in build/site, without network
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

bench: setup  ## measure (results under benchmarks/results)
	$(BIN)/python -m benchmarks

soak: setup  ## long runs: every law with 2,000 examples, 200 rounds of chaos over sockets and over a log, a router under load whose engines die, the demo over its whole trace, a cache under pressure; results under docs/soak
	HYPOTHESIS_PROFILE=slow $(BIN)/python -m pytest tests/property --timeout 3600
	mkdir -p docs/soak
	PYTHONPATH=tests $(BIN)/python -m chaos --rounds 200 --out docs/soak/chaos.json
	PYTHONPATH=tests $(BIN)/python -m soak --minutes 10 --out docs/soak/router.json
	JETSTREAM_ROUNDS=200 $(BIN)/python -m pytest tests/integration/test_jetstream_chaos.py --timeout 3600
	RELAY_ROUNDS=200 $(BIN)/python -m pytest tests/integration/test_relay_chaos.py tests/integration/test_relay_dynamo.py --timeout 3600
	$(BIN)/kvevents demo --limit 1000 --json > docs/soak/demo.json
	$(BIN)/python -m benchmarks.cache --operations 1000000

# The standard library is not instrumented, which needs no source of it; what that gives false alarms is suppressed.
TSAN_HOST = $(shell rustc -vV | sed -n 's/^host: //p')
tsan:  ## the index's threads under ThreadSanitizer, where a nightly toolchain is there
	@if ! cargo +nightly --version >/dev/null 2>&1; then echo "tsan: skipped, it needs a nightly toolchain" >&2; exit 0; fi; \
	TSAN_OPTIONS=suppressions=$(CURDIR)/rust/core/tests/tsan-suppressions.txt \
	RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer" CARGO_TARGET_DIR=target/tsan \
	cargo +nightly test --quiet --locked --target $(TSAN_HOST) -p kvevents-core --test index_threads

# libFuzzer by hand: its instrumentation needs no nightly compiler, only a C++ one.
FUZZ_TARGETS := wire coalesce index snapshot image log pseudonyms hash lint prompt
FUZZ_SECONDS := 300
FUZZ_FLAGS   := -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
	-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
	-Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing

fuzz:  ## look for inputs that break the core, guided by coverage, FUZZ_SECONDS for each of FUZZ_TARGETS
	set -e; for target in $(FUZZ_TARGETS); do \
		mkdir -p target/fuzz/$$target; \
		RUSTFLAGS="$(FUZZ_FLAGS)" FUZZ_TARGET=$$target cargo run --locked --profile fuzz --target-dir target/guided \
			--target $$(rustc -vV | sed -n 's/^host: //p') -p kvevents-fuzz --features coverage --bin guided -- target/fuzz/$$target \
			-max_len=16384 -rss_limit_mb=2048 -timeout=10 -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=target/fuzz/; \
	done

clean:  ## remove what was built
	rm -rf $(VENV) target build
