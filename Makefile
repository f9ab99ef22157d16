# Vervain: build, try, test, install, uninstall. `make` alone builds; the two commands of the README are `make demo` and `make test`.

PREFIX  ?= /usr/local
DESTDIR ?=
PROFILE_DIR := target/release
LIBS    := $(PROFILE_DIR)/lib/vervain
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)

# Finds cargo, or sets one up below target/.
CARGO ?= scripts/cargo.sh
export CARGO
# The libraries are looked for beside the command, so the build directory is the default one.
unexport CARGO_TARGET_DIR

# What building takes; where cargo is missing, what getting it takes.
BUILD_PACKAGES = gcc libc6-dev $(shell scripts/cargo.sh --needs)
DEMO_PACKAGES := ibverbs-utils perftest
# For `make test`, what a visitor's machine is soon given.
TEST_PACKAGES := ibverbs-utils perftest libibverbs-dev librdmacm-dev binutils python3 valgrind libc6-dbg util-linux iproute2 \
    nftables hostname tshark python3-scapy curl libpmix-dev rdmacm-utils
# For `make test-clients`, the rest.
CLIENT_PACKAGES := $(TEST_PACKAGES) ucx-utils python3-pyverbs rdma-core infiniband-diags qperf \
    openmpi-bin libopenmpi-dev mpich libmpich-dev hpcc libfabric-bin fio python3-mpi4py python3-numpy python3-pip \
    python3-venv python3-yaml libnuma1 libcurl4 chromium \
    libpython3.11-testsuite|libpython3.12-testsuite|libpython3.13-testsuite default-jdk-headless \
    clang libclang-rt-dev llvm gdb strace munge slurmctld slurmd slurm-client \
    qemu-system-x86 busybox-static cpio ndctl xz-utils \
    pkgconf|pkg-config
BENCH_PACKAGES := perftest libibverbs-dev valgrind ucx-utils openmpi-bin libopenmpi-dev mpich libmpich-dev \
    python3 python3-numpy iperf3 libfabric-bin rdmacm-utils strace

.PHONY: all build demo test test-clients soak bench results install uninstall clean fmt lint doc toolchain \
    packages-demo packages-test packages-test-clients packages-bench
# cargo uses all processors by itself; the packages come before it.
.NOTPARALLEL:
all: build

build:
	$(CARGO) build --release --workspace --exclude vervain-benches --exclude vervain-tests --exclude vervain-client-tests \
	    --exclude vervain-model
	@scripts/stage-libs.sh $(PROFILE_DIR) $(LIBS)
	@scripts/stage-acp.sh $(PROFILE_DIR) $(PROFILE_DIR) "$(CURDIR)/$(PROFILE_DIR)" $(VERSION)
	@scripts/stage-pm.sh $(PROFILE_DIR) $(PROFILE_DIR) "$(CURDIR)/$(PROFILE_DIR)" $(VERSION)

demo: packages-demo build
	@scripts/demo.sh $(PROFILE_DIR)/vervain

# Device, links, protocols, command, ping-pongs, perftest: minutes.
test: packages-test build
	@scripts/test.sh $@ --workspace --exclude vervain-client-tests

# MPI, UCX, HPCC, pyverbs, wheels, browser, containers, sanitizers, further networks; programs through windows, of PM, of rdma_cm, parked.
test-clients: packages-test-clients build
	@scripts/test.sh $@ --package vervain-client-tests

# The simulations of the transport, of connection managers and of pairs in a window, the models of the lock-free protocols, ACP's channels
# and maps, programs in a window that somebody scribbles into, each for SECONDS, and a million requests by boards; with SEED that one seed
# only, what happens in the simulations printed.
soak: build
	VERVAIN_SEED=$(SEED) VERVAIN_SOAK_FROM=$(FROM) VERVAIN_SOAK_SECONDS=$(SECONDS) $(CARGO) test --profile checked \
	    --package vervain-transport --package vervain-cm --test simulation --package vervain-window --test pairs \
	    --package vervain-model --test protocols \
	    --package vervain-tests --test acp_messages --test acp_maps --package vervain-client-tests --test window --test peach2 \
	    -- --ignored --exact --nocapture soak

bench: packages-bench build
	$(CARGO) run --release --package vervain-benches -- $(ARGS)

# The tables of docs/results.md and README.md anew, from the files of runs that they name.
results: toolchain
	$(CARGO) run --profile checked --package vervain-benches -- render

install: build
	install -d "$(DESTDIR)$(PREFIX)/bin" "$(DESTDIR)$(PREFIX)/lib/vervain" "$(DESTDIR)$(PREFIX)/lib/pkgconfig"
	install -m 755 $(PROFILE_DIR)/vervain "$(DESTDIR)$(PREFIX)/bin/vervain"
	scripts/stage-libs.sh $(PROFILE_DIR) "$(DESTDIR)$(PREFIX)/lib/vervain"
	scripts/stage-acp.sh $(PROFILE_DIR) "$(DESTDIR)$(PREFIX)" "$(PREFIX)" $(VERSION)
	scripts/stage-pm.sh $(PROFILE_DIR) "$(DESTDIR)$(PREFIX)" "$(PREFIX)" $(VERSION)
	install -d "$(DESTDIR)$(PREFIX)/include"
	install -m 644 crates/libibverbs/include/vervain.h "$(DESTDIR)$(PREFIX)/include/vervain.h"
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' packaging/vervain.pc.in \
	    > "$(DESTDIR)$(PREFIX)/lib/pkgconfig/vervain.pc"
	$(PROFILE_DIR)/vervain man "$(DESTDIR)$(PREFIX)/share/man/man1"
	scripts/install-completions.sh $(PROFILE_DIR)/vervain "$(DESTDIR)$(PREFIX)/share"
	install -d "$(DESTDIR)$(PREFIX)/share/doc/vervain"
	install -m 644 README.md LICENSE-MIT LICENSE-APACHE "$(DESTDIR)$(PREFIX)/share/doc/vervain"

# With the PREFIX and the DESTDIR of the installation.
uninstall:
	@scripts/uninstall.sh "$(DESTDIR)$(PREFIX)"

clean:
	rm -rf target

fmt:
	$(CARGO) fmt --all

# In the profile of the tests, as `doc`: what both need is built once.
lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --profile checked --workspace --all-targets -- -D warnings

doc:
	RUSTDOCFLAGS=-Dwarnings $(CARGO) doc --profile checked --workspace --no-deps

toolchain:
	@scripts/cargo.sh --set-up

packages-demo:
	@scripts/need-packages.sh '$(BUILD_PACKAGES) $(DEMO_PACKAGES)'

packages-test:
	@scripts/need-packages.sh '$(BUILD_PACKAGES) $(TEST_PACKAGES)'

packages-test-clients:
	@scripts/need-packages.sh '$(BUILD_PACKAGES) $(CLIENT_PACKAGES)'

packages-bench:
	@scripts/need-packages.sh '$(BUILD_PACKAGES) $(BENCH_PACKAGES)'
