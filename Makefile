# Vervain: build, try, test, install, uninstall. `make` alone builds; the two commands of the README are `make demo` and `make test`.
# What comes before a change is committed is `make test` (the gate), before an issue is called resolved `make check`: docs/testing.md.

PREFIX  ?= /usr/local
DESTDIR ?=
# What is installed; the test of that names its own build.
PROFILE_DIR ?= target/release
LIBS    := $(PROFILE_DIR)/lib/vervain
STRIPPED := $(PROFILE_DIR)/stripped
# Where packages are made.
PACKAGE_DIR ?= target/package
CHECKED := target/checked
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)

# Finds cargo, or sets one up below target/.
CARGO ?= scripts/cargo.sh
export CARGO
# The libraries are looked for beside the command, so the build directory is the default one.
unexport CARGO_TARGET_DIR

# What building takes; where cargo is missing, what getting it takes.
BUILD_PACKAGES = gcc libc6-dev $(shell scripts/cargo.sh --needs)
DEMO_PACKAGES := ibverbs-utils perftest
# Of this workspace: the command, and the libraries of scripts/stage-libs.sh.
DEMO_PARTS := cli preload libibverbs librdmacm librspreload libmlx5 libmlx4 libefa libhns libmana libionic
# For `make test`, with the clients that most users have.
TEST_PACKAGES := ibverbs-utils perftest libibverbs-dev librdmacm-dev binutils python3 valgrind libc6-dbg util-linux iproute2 \
    nftables hostname tshark python3-scapy curl libpmix-dev rdmacm-utils ucx-utils python3-pyverbs rdma-core \
    openmpi-bin libopenmpi-dev mpich libmpich-dev
# For `make check`, all others.
CHECK_PACKAGES := $(TEST_PACKAGES) infiniband-diags qperf hpcc libfabric-bin fio tgt libiscsi-bin python3-mpi4py python3-numpy python3-pip \
    python3-pytest python3-venv python3-yaml libnuma1 libcurl4 chromium \
    libpython3.11-testsuite|libpython3.12-testsuite|libpython3.13-testsuite default-jdk-headless \
    clang libclang-rt-dev llvm gdb strace munge slurmctld slurmd slurm-client \
    qemu-system-x86 busybox-static cpio ndctl xz-utils mmdebstrap \
    pkgconf|pkg-config
BENCH_PACKAGES := perftest libibverbs-dev valgrind ucx-utils openmpi-bin libopenmpi-dev mpich libmpich-dev \
    python3 python3-numpy iperf3 libfabric-bin rdmacm-utils strace

.PHONY: all build build-checked demo test test-arm check fetch soak fresh fresh-packages bench results \
    stripped install install-debug uninstall deb tarball packages-debug wheel wheel-old release clean fmt lint doc toolchain \
    packages-demo packages-test packages-check packages-bench
# cargo uses all processors by itself; the packages come before it.
.NOTPARALLEL:
all: build

# What ships: all but the tests and benches.
SHIPPED := --release --workspace $(addprefix --exclude vervain-,benches tests client-tests model put-only seeds skip)

build:
	$(CARGO) build $(SHIPPED)
	@scripts/stage-libs.sh $(PROFILE_DIR) $(LIBS)
	@scripts/stage-acp.sh $(PROFILE_DIR) $(PROFILE_DIR) "$(CURDIR)/$(PROFILE_DIR)" $(VERSION)
	@scripts/stage-pm.sh $(PROFILE_DIR) $(PROFILE_DIR) "$(CURDIR)/$(PROFILE_DIR)" $(VERSION)

# What the gate tests, by the command that `make test` goes on with, so that nothing is compiled twice.
build-checked:
	$(CARGO) build --profile checked --workspace --exclude vervain-client-tests --all-targets
	@scripts/stage-libs.sh $(CHECKED) $(CHECKED)/lib/vervain
	@scripts/stage-acp.sh $(CHECKED) $(CHECKED) "$(CURDIR)/$(CHECKED)" $(VERSION)
	@scripts/stage-pm.sh $(CHECKED) $(CHECKED) "$(CURDIR)/$(CHECKED)" $(VERSION)

# The command and the libraries as tests use them, without the link-time optimisation of what ships, which takes longest.
demo: packages-demo
	$(CARGO) build --profile checked $(DEMO_PARTS:%=--package vervain-%)
	@scripts/stage-libs.sh $(CHECKED) $(CHECKED)/lib/vervain
	@scripts/demo.sh $(CHECKED)/vervain

# The gate: device, links, protocols, command, and a row of each client that most users have, on the build of the tests' own profile.
test: packages-test build-checked
	@VERVAIN_SEEDS=$${VERVAIN_SEEDS:-1000} PROPTEST_RNG_SEED=$${PROPTEST_RNG_SEED:-1} scripts/test.sh $@ --workspace --exclude vervain-client-tests

# All of it on what ships: every way of every program, MPI, UCX, HPCC, pyverbs, wheels, browser, containers, guests, sanitizers, jobs.
check: packages-check fetch build
	@VERVAIN_TESTS_WHOLE=1 VT_SEED=$${VT_SEED:-random} VERVAIN_BIN="$(CURDIR)/target/release/vervain" scripts/test.sh $@ --workspace
	@scripts/note-check.sh

# What tests need beside packages: a kernel for guests, wheels, mpi4py's source, CRIU.
fetch:
	@scripts/fetch.sh

# The simulations of the transport, of connection managers and of pairs in a window, the models of the lock-free protocols, ACP's channels
# and maps, programs in a window that somebody scribbles into, each for SECONDS, and a million requests by boards; with SEED that one seed
# only, what happens in the simulations printed.
soak: build
	VERVAIN_BIN="$(CURDIR)/target/release/vervain" VERVAIN_SEED=$(SEED) VERVAIN_SOAK_FROM=$(FROM) VERVAIN_SOAK_SECONDS=$(SECONDS) \
	    VT_SEED=$(or $(SEED),random) $(CARGO) test --profile checked \
	    --package vervain-transport --package vervain-cm --test simulation --package vervain-window --test pairs \
	    --package vervain-model --test protocols \
	    --package vervain-tests --test acp_messages --test acp_maps --package vervain-client-tests --test window --test peach2 \
	    -- --ignored --exact --nocapture soak

# Part of soak: README's commands and the gate, as another user and as root, on machines that have nothing yet: roots that
# mmdebstrap makes, of SUITES (bookworm, trixie, noble). Needs root; an hour for each.
fresh:
	@scripts/fresh.sh $(SUITES)

# The packages in such roots, without network and cargo. Needs root; two minutes for each.
fresh-packages: deb tarball
	@scripts/fresh-packages.sh "$(PACKAGE_DIR)"/vervain_$(VERSION)_*.deb "$(PACKAGE_DIR)"/vervain-$(VERSION)-*-linux.tar.gz \
	    $(SUITES)

# For AArch64, cross-compiled and emulated: what of the tests can run so on a machine of another kind. Some ten minutes.
test-arm:
	@scripts/cross.sh scripts/test-arm.sh

bench: packages-bench build
	$(CARGO) run --release --package vervain-benches -- $(ARGS)

# The tables of docs/results.md anew, from the files of runs that it names.
results: toolchain
	$(CARGO) run --profile checked --package vervain-benches -- render

# What ships: the build without what only debuggers read.
stripped: build
	@scripts/strip.sh $(PROFILE_DIR) $(STRIPPED)

install: stripped
	scripts/stage.sh $(STRIPPED) "$(DESTDIR)$(PREFIX)" "$(PREFIX)" $(VERSION)

# What `install` leaves out, for gdb, valgrind and backtraces, beside each file.
install-debug: stripped
	scripts/stage-debug.sh $(STRIPPED) "$(DESTDIR)$(PREFIX)"

# The command, its libraries and the Python package in one file for pip, below target/package: docs/python.md.
wheel: build
	@scripts/make-wheel.py $(PROFILE_DIR) target/package $(VERSION)

# The same for systems with an older glibc, 2.31 and later, by a build of its own that is linked against Debian 11's.
wheel-old: toolchain
	@scripts/old-glibc.sh target/old-glibc
	PATH="$(CURDIR)/target/old-glibc/bin:$$PATH" $(CARGO) build $(SHIPPED) --target-dir target/old-glibc/build
	@scripts/make-wheel.py target/old-glibc/build/release target/package $(VERSION)

# With the PREFIX and the DESTDIR of the installation.
uninstall:
	@scripts/uninstall.sh "$(DESTDIR)$(PREFIX)"

# Files to hand on, in PACKAGE_DIR (docs/install.md); what debuggers want of them apart.
deb: stripped
	@scripts/package.sh deb $(STRIPPED) "$(PACKAGE_DIR)"

tarball: stripped
	@scripts/package.sh tarball $(STRIPPED) "$(PACKAGE_DIR)"

packages-debug: stripped
	@scripts/package.sh deb-debug $(STRIPPED) "$(PACKAGE_DIR)"
	@scripts/package.sh tarball-debug $(STRIPPED) "$(PACKAGE_DIR)"

# What a release hands out, below target/package: docs/stability.md. ARGS: --allow-untagged, --untried, --native.
release: toolchain
	@scripts/release.sh $(ARGS)

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

packages-check:
	@scripts/need-packages.sh '$(BUILD_PACKAGES) $(CHECK_PACKAGES)'

packages-bench:
	@scripts/need-packages.sh '$(BUILD_PACKAGES) $(BENCH_PACKAGES)'
