# Vervain: build, try, test, install. `make` alone builds; the two commands of the README are `make demo` and `make test`.

PREFIX  ?= /usr/local
DESTDIR ?=
PROFILE_DIR := target/release
LIBS    := $(PROFILE_DIR)/lib/vervain
MSRV    := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)

# cargo may be installed and not in PATH: a fresh rustup, sudo, cron.
CARGO ?= $(or $(shell command -v cargo 2>/dev/null),$(wildcard $(HOME)/.cargo/bin/cargo))
ifneq ($(CARGO),)
export PATH := $(dir $(CARGO)):$(PATH)
endif
# The libraries are looked for beside the command, so the build directory is the default one.
unexport CARGO_TARGET_DIR

DEMO_PACKAGES := ibverbs-utils perftest
TEST_PACKAGES := ibverbs-utils perftest libibverbs-dev librdmacm-dev gcc libc6-dev binutils python3 valgrind \
    util-linux iproute2 nftables hostname tshark ucx-utils python3-pyverbs rdma-core infiniband-diags qperf \
    openmpi-bin libopenmpi-dev mpich libmpich-dev hpcc python3-mpi4py python3-numpy python3-pip \
    python3-venv python3-yaml libnuma1 libcurl4 chromium libpython3.11-testsuite \
    clang libclang-rt-dev llvm gdb strace
BENCH_PACKAGES := perftest libibverbs-dev gcc libc6-dev valgrind ucx-utils openmpi-bin libopenmpi-dev mpich libmpich-dev \
    python3 python3-numpy iperf3 libfabric-bin

.PHONY: all build demo test soak bench results install clean fmt lint doc toolchain packages-demo packages-test packages-bench
all: build

build: toolchain
	$(CARGO) build --release --workspace --exclude vervain-benches --exclude vervain-tests
	@scripts/stage-libs.sh $(PROFILE_DIR) $(LIBS)

demo: packages-demo build
	@scripts/demo.sh $(PROFILE_DIR)/vervain

test: packages-test build
	$(CARGO) test --profile checked --workspace --no-fail-fast

# The simulation of the transport for SECONDS; with SEED that one seed only, its packets printed.
soak: toolchain
	VERVAIN_SEED=$(SEED) VERVAIN_SOAK_FROM=$(FROM) VERVAIN_SOAK_SECONDS=$(SECONDS) $(CARGO) test --profile checked \
	    --package vervain-transport --test simulation -- --ignored --exact --nocapture soak

bench: packages-bench build
	$(CARGO) run --release --package vervain-benches -- $(ARGS)

# The tables of docs/results.md and README.md anew, from the files of runs that they name.
results: toolchain
	$(CARGO) run --profile checked --package vervain-benches -- render

install: build
	install -d "$(DESTDIR)$(PREFIX)/bin" "$(DESTDIR)$(PREFIX)/lib/vervain" "$(DESTDIR)$(PREFIX)/lib/pkgconfig"
	install -m 755 $(PROFILE_DIR)/vervain "$(DESTDIR)$(PREFIX)/bin/vervain"
	scripts/stage-libs.sh $(PROFILE_DIR) "$(DESTDIR)$(PREFIX)/lib/vervain"
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' packaging/vervain.pc.in \
	    > "$(DESTDIR)$(PREFIX)/lib/pkgconfig/vervain.pc"
	$(PROFILE_DIR)/vervain man "$(DESTDIR)$(PREFIX)/share/man/man1"
	scripts/install-completions.sh $(PROFILE_DIR)/vervain "$(DESTDIR)$(PREFIX)/share"
	install -d "$(DESTDIR)$(PREFIX)/share/doc/vervain"
	install -m 644 README.md LICENSE-MIT LICENSE-APACHE "$(DESTDIR)$(PREFIX)/share/doc/vervain"

clean: toolchain
	$(CARGO) clean

fmt: toolchain
	$(CARGO) fmt --all

# In the profile of the tests, as `doc`: what both need is built once.
lint: toolchain
	$(CARGO) fmt --all --check
	$(CARGO) clippy --profile checked --workspace --all-targets -- -D warnings

doc: toolchain
	RUSTDOCFLAGS=-Dwarnings $(CARGO) doc --profile checked --workspace --no-deps

toolchain:
	@scripts/check-toolchain.sh "$(CARGO)" "$(MSRV)"

packages-demo:
	@scripts/need-packages.sh $(DEMO_PACKAGES)

packages-test:
	@scripts/need-packages.sh $(TEST_PACKAGES)

packages-bench:
	@scripts/need-packages.sh $(BENCH_PACKAGES)
