# TxStore: make test, check, demo, bench. See `make help`.
#
# Each purpose has its own virtual environment, .venv/<Python version>-<purpose>, made on first use and brought up to
# date when pyproject.toml, setup.py or the C sources change. PYTHON=... chooses the interpreter, PYTEST_ARGS=... adds
# arguments to pytest.

# The interpreters found, newest first, one of each version: on the PATH, or where pyenv keeps them. Each is asked for
# its version, because a name on the PATH may be a shim that leads nowhere. A free-threaded build has to be chosen.
FIND_PYTHONS := \
  for version in 3.13 3.12 3.11; do \
    for python in python$$version python3 "$$HOME"/.pyenv/versions/$$version.*/bin/python; do \
      found=$$("$$python" -c 'import ensurepip, sys, venv; print("%d.%d%s" % (*sys.version_info[:2], sys.abiflags), sys.executable)' 2>/dev/null) || continue; \
      case $$found in "$$version "*) echo "$${found\#* }"; break;; esac; \
    done; \
  done
# Looked for once: the makes that this one starts are told.
ifndef TXSTORE_PYTHONS
TXSTORE_PYTHONS := $(shell $(FIND_PYTHONS))
endif
export TXSTORE_PYTHONS

PYTHON ?= $(or $(firstword $(TXSTORE_PYTHONS)),python3)
OLDEST := $(or $(lastword $(TXSTORE_PYTHONS)),$(PYTHON))
tag = $(shell $(1) -c 'import sys; print("%d.%d%s" % (*sys.version_info[:2], sys.abiflags))')
TAG := $(call tag,$(PYTHON))
ZARR2_TAG := $(call tag,$(OLDEST))
ifeq ($(TAG),)
$(error $(PYTHON) does not run)
endif

TEST := .venv/$(TAG)-test
DEMO := .venv/$(TAG)-demo
BENCH := .venv/$(TAG)-bench
ZARR2 := .venv/$(ZARR2_TAG)-zarr2
TORCH := .venv/$(ZARR2_TAG)-torch
TENSORFLOW := .venv/$(ZARR2_TAG)-tensorflow
PLAIN := .venv/$(TAG)-plain
LOWEST := .venv/$(ZARR2_TAG)-lowest
CLIENTS := .venv/$(TAG)-clients
CLIENT_GROUPS := $(sort $(patsubst tests/clients/%/requirements.in,%,$(wildcard tests/clients/*/requirements.in)))
ENGINES := .venv/$(TAG)-engines
ZARR_SUITE := .venv/$(TAG)-zarr-suite
DOCS := .venv/$(ZARR2_TAG)-docs

# Where there is a compiler, a warning or a failed build of the C is an error; where there is none, the fallbacks serve.
HAS_COMPILER := $(shell command -v cc >/dev/null 2>&1 && \
  test -f "$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" && echo 1)
export TXSTORE_WERROR ?= $(or $(HAS_COMPILER),0)
export PIP_DISABLE_PIP_VERSION_CHECK = 1
export PIP_ROOT_USER_ACTION = ignore
export PIP_NO_INPUT = 1
# Each process that a test starts would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

SOURCES := Makefile pyproject.toml setup.py $(wildcard txstore/_native/*.c txstore/_native/*.h)
# What the fallbacks of the C do: everything, and the part of it that make test has time for.
PURE_TESTS := $(addprefix tests/,format history segments locks storage native transactions store vectors)
FALLBACK_TESTS := $(addprefix tests/,format history segments native)
PYTEST_ARGS ?=
PARALLEL := --numprocesses auto --dist worksteal
# Many tests wait for one another's processes and for servers: two workers more than there are cores.
export PYTEST_XDIST_AUTO_NUM_WORKERS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 2)))
comma := ,

# $(call environment,FOLDER,PYTHON,WHAT TO INSTALL). One that was never finished has no stamp, and is made anew: what an
# interrupted installation has left is neither there nor missing. uv chooses the versions: pip takes minutes for the extras.
define environment
	$(call bare-environment,$(1),$(2),uv)
	$(1)/bin/python -m uv pip install --quiet --python $(1)/bin/python --compile-bytecode --no-build-isolation $(3)
endef

# $(call bare-environment,FOLDER,PYTHON,WHAT PIP INSTALLS)
define bare-environment
	test -e $(1)/stamp && $(1)/bin/python -m pip --version >/dev/null 2>&1 || $(2) -m venv --clear $(1)
	$(1)/bin/python -m pip install --quiet --quiet --upgrade pip 'setuptools>=77'
	$(1)/bin/python -m pip install --quiet --quiet --no-build-isolation $(3)
endef

.PHONY: help test test-full test-on clients check format demo docs bench walks histories seeded reliability sanitize dist environment list clean
.DEFAULT_GOAL := help

help:
	@echo 'make test         the tests that take no long time, with the C and without: 4 minutes on two cores'
	@echo 'make test-full    every test, with the C and without: half an hour'
	@echo 'make test-on WHAT=pythons, lowest, zarr2, torch, tensorflow, engines, plain or zarr-suite: other versions and packages'
	@echo 'make clients      tools that are built on zarr, over a store and over LocalStore: one table. WHAT=published puts the table'
	@echo '                  into the documents, WHAT=lock asks for the newest versions; one group: $(CLIENT_GROUPS)'
	@echo 'make check        ruff, mypy --strict, the layers, and that no figure of make walks has become worse'
	@echo 'make format       ruff format, and the fixes that ruff can make'
	@echo 'make demo         txstore demo'
	@echo 'make docs         the site, in build/docs/html; WHAT=links: its links to other sites'
	@echo 'make bench        the benchmarks; a part of them: WHAT=$(subst $() $(),$(comma) ,$(filter-out all,$(patsubst bench-%,%,$(filter bench-%,$(.VARIABLES)))))'
	@echo 'make walks        how much code there is, and through how many files a write, a commit and a merge go, beside bounds'
	@echo 'make histories WHAT=... random histories, or damage, beside a model; MANY= says how many. One of:'
	@echo '                  $(sort $(patsubst histories-%,%,$(filter histories-%,$(.VARIABLES))))'
	@echo 'make seeded       the tests find each bug that is put into the product; WHAT=history: those in this wing'
	@echo 'make reliability  crash, kills, histories, fuzz, bit flips, seeded bugs: one table, in some hours'
	@echo 'make sanitize     the C under the thread, address and undefined behaviour sanitizers'
	@echo 'make dist         sdist and wheel in build/dist; each is installed, the sdist without a compiler, and tested'
	@echo 'make environment  only makes one: WHAT=test, docs, lowest, zarr2, torch and so on'
	@echo 'make list         the Pythons found, one a line; WHAT=clients: the groups of tools; make clean: removes .venv, and what was built'
	@echo 'Python: $(PYTHON)'

# $(call chosen,TARGET): the commands of `make TARGET WHAT=...`, a variable TARGET-WHAT below.
chosen = $(or $($(1)-$(WHAT)),$(error make $(1) WHAT=... is one of: $(sort $(patsubst $(1)-%,%,$(filter $(1)-%,$(.VARIABLES))))))

$(TEST)/stamp: $(SOURCES)
	$(call environment,$(TEST),$(PYTHON),--editable '.[demo$(comma)test$(comma)dev$(comma)references]')
	touch $@

$(DEMO)/stamp: $(SOURCES)
	$(call environment,$(DEMO),$(PYTHON),--editable '.[demo]')
	touch $@

$(BENCH)/stamp: $(SOURCES)
	$(call environment,$(BENCH),$(PYTHON),--editable '.[bench]')
	touch $@

# txstore asks for zarr 3; here it meets zarr 2 on purpose, with only the packages that it needs itself.
$(ZARR2)/stamp: $(SOURCES)
	$(call environment,$(ZARR2),$(OLDEST),'zarr==2.18.*' 'numcodecs<0.16' numpy fsspec filelock google-crc32c \
	  pytest pytest-asyncio pytest-timeout)
	$(ZARR2)/bin/python -m uv pip install --quiet --python $(ZARR2)/bin/python --no-build-isolation --no-deps --editable .
	touch $@

# Of PyTorch this version: it is one whose Linux build for processors without a GPU is to be had. pip installs it, from the
# package index that this machine names to pip: uv would bring libraries for a GPU, of some gigabytes.
LOADERS := pytest pytest-asyncio pytest-timeout pytest-xdist hypothesis --editable .
$(TORCH)/stamp: $(SOURCES)
	$(call bare-environment,$(TORCH),$(OLDEST),'torch==2.13.0' $(LOADERS))
	touch $@

$(TENSORFLOW)/stamp: $(SOURCES)
	$(call bare-environment,$(TENSORFLOW),$(OLDEST),tensorflow-cpu $(LOADERS))
	touch $@

# The lowest versions that pyproject.toml allows, on the oldest Python; only what runs the tests is the newest.
$(LOWEST)/stamp: $(SOURCES)
	$(call environment,$(LOWEST),$(OLDEST),pytest pytest-asyncio pytest-timeout pytest-xdist hypothesis)
	$(LOWEST)/bin/python -m uv pip install --quiet --python $(LOWEST)/bin/python --compile-bytecode --no-build-isolation \
	  --resolution lowest-direct --editable '.[xarray,import,otel,remote,serve]' 'dask>=2025.4' 'opentelemetry-sdk>=1.30'
	touch $@

$(ZARR_SUITE)/stamp: $(SOURCES)
	$(call environment,$(ZARR_SUITE),$(PYTHON),pytest pytest-asyncio pytest-xdist pytest-timeout pytest-benchmark hypothesis \
	  tomlkit numpydoc universal-pathlib obstore fsspec rich typer --editable .)
	touch $@

# Tools that write and read through a store of zarr's, and know nothing of this one: the versions that the lock file says.
# (A stamp that only patterns name would be deleted when make ends.)
.PRECIOUS: $(CLIENTS)-%/stamp
$(CLIENTS)-%/stamp: tests/clients/%/requirements.lock $(SOURCES)
	$(call environment,$(@D),$(PYTHON),--no-deps --requirement $< --editable .)
	touch $@

# Engines that start worker processes, and repeat what these had to do when they die.
$(ENGINES)/stamp: $(SOURCES)
	$(call environment,$(ENGINES),$(PYTHON),apache-beam cubed dask distributed ray pytest pytest-asyncio pytest-timeout \
	  --editable .)
	touch $@

# Readers that have no txstore: what they can do is what these packages can.
$(PLAIN)/stamp: Makefile
	$(call environment,$(PLAIN),$(PYTHON),zarr fsspec s3fs xarray pandas fastparquet)
	touch $@

$(DOCS)/stamp: $(SOURCES)
	$(call environment,$(DOCS),$(OLDEST),--editable '.[docs]')
	touch $@

# $(call stamp,PURPOSE): that of an environment, by its name.
stamp = $(or $(filter %-$(1)/stamp,$(addsuffix /stamp,$(TEST) $(DEMO) $(BENCH) $(ZARR2) $(TORCH) $(TENSORFLOW) $(PLAIN) $(LOWEST) \
  $(ENGINES) $(ZARR_SUITE) $(DOCS) $(addprefix $(CLIENTS)-,$(CLIENT_GROUPS)))),$(error there is no environment $(1)))

environment: $(call stamp,$(or $(if $(filter environment,$(MAKECMDGOALS)),$(WHAT)),test))

# The site. A warning is an error, a link inside that leads nowhere is a warning, and the notebooks of the gallery are run.
# It is built from nothing, beside the last one: no page is believed that an interrupted or failed build has left.
docs: WHAT ?= site
docs: $(DOCS)/stamp
	$(call chosen,docs)

define docs-site
	rm -rf build/docs/next
	$(DOCS)/bin/python -m sphinx --builder html --fail-on-warning --keep-going --quiet docs build/docs/next
	rm -rf build/docs/html
	mv build/docs/next build/docs/html
	@echo 'build/docs/html/index.html'
endef

# Links that lead outside: wants the network, and is not part of CI.
docs-links = $(DOCS)/bin/python -m sphinx --builder linkcheck --fresh-env --quiet docs build/docs/links

test: $(TEST)/stamp
	@echo 'The tests take 4 minutes on two cores that have nothing else to do; make test-full has all of them.'
	$(TEST)/bin/python -m pytest $(PARALLEL) -m 'not long' $(PYTEST_ARGS)
	TXSTORE_PURE_PYTHON=1 $(TEST)/bin/python -m pytest $(PARALLEL) -m 'not long' $(FALLBACK_TESTS) $(PYTEST_ARGS)

test-full: $(TEST)/stamp
	@echo 'All tests take half an hour on two cores that have nothing else to do.'
	$(TEST)/bin/python -m pytest $(PARALLEL) $(PYTEST_ARGS)
	TXSTORE_PURE_PYTHON=1 $(TEST)/bin/python -m pytest $(PARALLEL) $(PURE_TESTS) $(PYTEST_ARGS)

# Other versions of Python and of packages, each in an environment of its own.
test-on: $(if $(filter test-on,$(MAKECMDGOALS)),$(foreach each,$(or $(filter-out pythons,$(WHAT)),test),$(call stamp,$(each))) \
  $(if $(filter plain,$(WHAT)),$(TEST)/stamp))
	$(call chosen,test-on)

test-on-pythons = set -e; for python in $(or $(TXSTORE_PYTHONS),$(PYTHON)); do $(MAKE) --no-print-directory test PYTHON=$$python; done

test-on-zarr2 = $(ZARR2)/bin/python -m pytest --confcutdir=tests/zarr2 tests/zarr2 $(PYTEST_ARGS)

# Whether the lower bounds of pyproject.toml are true: two to three minutes.
LOWEST_TESTS := $(addprefix tests/,codecs format history/test_snapshot.py history/test_branches.py store transactions/test_transactions.py \
  interchange/test_format3.py interchange/test_import.py interchange/test_urls.py interchange/test_writing_by_url.py interchange/test_xarray.py \
  serving/test_plain_zarr.py test_telemetry.py)
test-on-lowest = $(LOWEST)/bin/python -m pytest $(PARALLEL) -m 'not long' $(LOWEST_TESTS) $(PYTEST_ARGS)

# The tests of the installed zarr, from its source distribution: as zarr is, then with every call in the caller's thread.
SUITE := build/zarr-suite
define test-on-zarr-suite
	rm -rf $(SUITE)
	mkdir -p $(SUITE)
	$(ZARR_SUITE)/bin/python -m pip download --quiet --quiet --no-deps --no-binary zarr --dest $(SUITE) \
	  zarr==$$($(ZARR_SUITE)/bin/python -c 'import zarr; print(zarr.__version__)')
	tar --extract --gzip --file $(SUITE)/zarr-*.tar.gz --directory $(SUITE) --strip-components=1
	for run in plain ours; do \
	  (cd $(SUITE) && PYTHONPATH=$(CURDIR)/tests/zarr_suite $(CURDIR)/$(ZARR_SUITE)/bin/python -m pytest $(PARALLEL) --quiet tests \
	    --ignore=tests/benchmarks --junitxml=$$run.xml $$(test $$run = ours && echo '-p in_callers_thread') \
	    $(PYTEST_ARGS)) >$(SUITE)/$$run.log 2>&1; \
	done; $(ZARR_SUITE)/bin/python -m tests.zarr_suite.compare $(SUITE)/plain.xml $(SUITE)/ours.xml
endef

test-on-engines = $(ENGINES)/bin/python -m pytest --confcutdir=tests/engines tests/engines $(PYTEST_ARGS)
test-on-torch = $(TORCH)/bin/python -m pytest $(PARALLEL) tests/loaders $(PYTEST_ARGS)
# Not part of CI: an installation of some hundred megabytes for one thin module.
test-on-tensorflow = $(TENSORFLOW)/bin/python -m pytest $(PARALLEL) tests/loaders $(PYTEST_ARGS)
test-on-plain = TXSTORE_PLAIN_PYTHON=$(CURDIR)/$(PLAIN)/bin/python TXSTORE_PUBLISHED_READS=$(or $(MANY),500) \
  $(TEST)/bin/python -m pytest $(PARALLEL) tests/interchange -k 'test_references or without_' $(PYTEST_ARGS)

# Tools that are built on zarr: those of one group, tests/clients/GROUP; by default all groups, one after the other since
# they are timed, and one table, which says what has failed.
clients: WHAT ?= all
clients: $(if $(filter clients,$(MAKECMDGOALS)),$(call stamp,$(or $(filter $(CLIENT_GROUPS),$(WHAT)),$(if $(filter lock,$(WHAT)),lowest),test)))
	$(if $(filter $(CLIENT_GROUPS),$(WHAT)),$(clients-of-one),$(call chosen,clients))

clients-of-one = $(CLIENTS)-$(WHAT)/bin/python -m pytest --disable-plugin-autoload -p pytest_asyncio.plugin -p pytest_timeout \
  --confcutdir=tests/clients tests/clients/$(WHAT) $(PYTEST_ARGS)

define clients-all
	rm -rf build/clients
	-for group in $(CLIENT_GROUPS); do $(MAKE) --no-print-directory --jobs 1 clients WHAT=$$group; done
	$(TEST)/bin/python -m tests.clients.table $(CLIENT_GROUPS)
endef

# What the last run has found, as a table in the documents.
clients-published = $(TEST)/bin/python -m tests.clients.table --publish $(CLIENT_GROUPS)

# The newest versions that go together, of what requirements.in of each group names, and of what txstore and its server need.
define clients-lock
	set -e; for group in $(CLIENT_GROUPS); do \
	  $(LOWEST)/bin/python -m uv pip compile --quiet --upgrade --no-header --no-annotate --python-version $(TAG) --extra serve \
	    --output-file tests/clients/$$group/requirements.lock pyproject.toml tests/clients/$$group/requirements.in; \
	done
endef

# One a line: for scripts. The interpreters come newest first.
list:
	@printf '%s\n' $(if $(filter clients,$(WHAT)),$(CLIENT_GROUPS),$(or $(TXSTORE_PYTHONS),$(PYTHON)))

check: $(TEST)/stamp
	$(TEST)/bin/python aio_stub.py
	$(TEST)/bin/ruff check .
	$(TEST)/bin/ruff format --check .
	$(TEST)/bin/mypy --strict txstore tests/typing/calls.py
	$(TEST)/bin/python -m pytest --quiet tests/test_layers.py
	$(TEST)/bin/python -m benchmarks.code.gauge

format: $(TEST)/stamp
	$(TEST)/bin/ruff check --fix .
	$(TEST)/bin/ruff format .

demo: $(DEMO)/stamp
	$(DEMO)/bin/txstore demo

# How much code there is, and how far a call goes through it; make check fails if that has become more. WALKS_ARGS=--lower records
# what has become less. `python -m benchmarks.code.walks --show 'local commit'` tells which files a call goes through.
walks: $(TEST)/stamp
	$(TEST)/bin/python -m benchmarks.code.gauge $(WALKS_ARGS)

# The environment of the tests has what drives Chromium, and the server.
bench: WHAT ?= all
bench: $(if $(filter page pictures reader-js,$(WHAT)),$(TEST),$(BENCH))/stamp
	$(call chosen,bench)

bench-all = $(BENCH)/bin/python -m benchmarks
# Ten million keys on a local disk: memory.
bench-keys = $(BENCH)/bin/python -m benchmarks --only keys
# Those of several processes alone: locks, following, commits that share syncs.
bench-processes = $(BENCH)/bin/python -m benchmarks --only locks --only follow --only commit-group
# A repository on S3, beside zarr's FsspecStore and Icechunk on the same server; and on one that is 30 ms away.
bench-remote = $(BENCH)/bin/python -m benchmarks --only remote --only distance
# A hundred million keys: bytes, runs, write amplification; beside real repositories of up to a million.
bench-simulate-keys = $(BENCH)/bin/python -m benchmarks --only simulate-keys
bench-simulate-commits = $(BENCH)/bin/python -m benchmarks --only simulate-commits
# Against `python -m http.server` and nginx: on Debian, apt-get install nginx-light wrk.
bench-serve = $(BENCH)/bin/python -m benchmarks --only serve
bench-page = $(TEST)/bin/python -m benchmarks --only page
# Those of the page of txstore serve, in the documents.
bench-pictures = $(TEST)/bin/python -m tests.serving.browser.pictures
bench-reader-js = $(TEST)/bin/python -m tests.reader_js.scale
# TxStore beside its peers, and what it has to reach. PEERS_ARGS='--rows "16 KiB" --peers TxStore --rounds 3' chooses.
bench-peers = $(BENCH)/bin/python -m benchmarks.peers $(if $(QUICK),--quick) $(PEERS_ARGS)
# What the last run has found, as tables and pictures in the documents.
bench-published = $(BENCH)/bin/python -m benchmarks --publish
bench-peers-published = $(BENCH)/bin/python -m benchmarks.peers --publish

# $(call stress,NAME,FLAGS): the program fails by itself when a sanitizer has reported anything.
define stress
	$(CC) -std=gnu11 -O1 -g -Wall -Wextra -Werror -pthread $(2) -Itxstore/_native tests/native/lock_stress.c \
	  -o build/native/lock_stress-$(1)
	rm -f build/native/locks-$(1)
	build/native/lock_stress-$(1) build/native/locks-$(1) $(SANITIZE_SECONDS)
endef

# $(call sanitized,MODULE AND ARGUMENTS): the extensions under the address and undefined behaviour sanitizers, in an own copy of txstore.
define sanitized
	CFLAGS='-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer' \
	  $(TEST)/bin/python setup.py --quiet build_ext --build-temp build/asan-objects --build-lib build/asan
	cd txstore && find . -name '*.py' -exec cp --parents '{}' ../build/asan/txstore/ ';'
	LD_PRELOAD="$$($(CC) -print-file-name=libasan.so)" ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=build/asan:. \
	  $(TEST)/bin/python -P -m $(1)
endef

SANITIZE_SECONDS ?= 15
# Random histories, or damage, beside a model: is anything other than it says? MANY= says how many.
histories: $(TEST)/stamp
	$(call chosen,histories)

# What several processes have read and written, while some are killed: one history for each workload and level.
histories-isolation = TXSTORE_HISTORIES=$(or $(MANY),10000) $(TEST)/bin/python -m pytest tests/isolation $(PYTEST_ARGS)
# Four processes write one table by label and by position: is each commit what a model makes of it?
histories-labels = $(TEST)/bin/python -m tests.labels --histories $(or $(MANY),5000)
# Erasures at once, and killed, beside all that copies values: is anything else changed, and is anything left?
histories-erasures = $(TEST)/bin/python -m tests.erasures --histories $(or $(MANY),2000)
# Four processes change the sources of views: is each output, at each commit, what numpy makes of them?
histories-views = $(TEST)/bin/python -m tests.views --histories $(or $(MANY),2000)
# Two processes change arrays, two others keep a copy by a feed, and are killed: is each change done exactly once?
histories-feeds = $(TEST)/bin/python -m tests.feeds --histories $(or $(MANY),2000)
# Random histories of branches that pull from one another: is anything other than git makes of them? Takes git 2.39.
histories-merges = $(TEST)/bin/python -m tests.merging --seeds $(or $(MANY),5000)
# Threads that share a store, beside other processes, interrupts and rollbacks, on each of zarr's pipelines in turn: MANY seconds.
histories-threads = $(TEST)/bin/python -m tests.threads --seconds $(or $(MANY),3600) $(THREADS_ARGS)
# Tiles that know nothing of chunks, by threads, by processes of one transaction, and by transactions: is anything lost?
histories-tiles = $(TEST)/bin/python -m tests.pipeline --rounds $(or $(MANY),1000)
# The reader in JavaScript beside the one in Python: 501 random repositories, and many with flipped bits.
histories-read-js = TXSTORE_MODEL_EXAMPLES=167 TXSTORE_FLIPS=$(or $(MANY),20000) $(TEST)/bin/python -m pytest \
  -m 'long or not long' tests/reader_js $(PYTEST_ARGS)
# Processes killed at any point of lock, stage and commit, in one pid namespace and in two.
histories-torture = TXSTORE_KILL_ROUNDS=$(or $(MANY),10000) $(TEST)/bin/python -m pytest \
  tests/system/processes/test_torture.py tests/system/processes/test_locktable_kills.py $(PYTEST_ARGS)
# The power is lost at any point.
histories-crash = $(TEST)/bin/python -m tests.crash --images $(or $(MANY),100000)
# Of two users in one group, one puts links, FIFOs, devices and so on in the place of each path of a repository.
histories-hostile = TXSTORE_HOSTILE_PATHS=all $(TEST)/bin/python -m pytest $(PARALLEL) --timeout 0 \
  tests/system/processes/test_hostile_users.py $(PYTEST_ARGS)

# Every decoder on ten million damaged inputs, and a million repositories that lie, with right checksums; first on fewer,
# with the C under the address and undefined behaviour sanitizers.
FUZZ_INPUTS ?= 10000000
FUZZ_REPOSITORIES ?= 1000000
define histories-fuzz
	$(call sanitized,tests.fuzz --inputs 300000 --repositories 20000)
	$(TEST)/bin/python -m tests.fuzz --inputs $(FUZZ_INPUTS) --repositories $(FUZZ_REPOSITORIES)
endef

# Ceph's gateway with a cluster in memory, on loopback. On Debian: apt-get install ceph-mon ceph-osd ceph-common radosgw.
# First what runs on every server: races, kills, and outages; then what the tests ask of S3: TXSTORE_S3 says who that is.
# What is counted is left in build/ceph.json*.
CEPH_EACH := $(addprefix tests/system/remote/,test_objects.py test_races.py test_commit_races.py test_backups.py test_ceph.py suites)
CEPH_S3 := $(addprefix tests/system/remote/,test_lost_answers.py test_full_bucket.py test_opening.py test_bad_input.py \
  test_errors.py test_proxy.py test_group_commits.py test_named.py test_participants.py)
CEPH := TXSTORE_REQUIRE_SERVERS=1 TXSTORE_RACE_ROUNDS=200 TXSTORE_COMMIT_ROUNDS=25 TXSTORE_GATEWAY_KILLS=8 \
  TXSTORE_LOST_COMMITS=200 TXSTORE_RELIABILITY_JSON=build/ceph.json TXSTORE_SERVERS=memory,ceph
define histories-ceph
	$(CEPH) $(TEST)/bin/python -m pytest --numprocesses 2 --dist worksteal --timeout 0 -k ceph $(CEPH_EACH) $(PYTEST_ARGS)
	$(CEPH) TXSTORE_S3=ceph $(TEST)/bin/python -m pytest --numprocesses 2 --dist worksteal --timeout 0 \
	  -k 'not azure and not gcs and not elsewhere' $(CEPH_S3) $(PYTEST_ARGS)
endef

# The tests find each bug that is put into the product: all, or those in one wing.
seeded: $(TEST)/stamp
	$(TEST)/bin/python -m pytest $(PARALLEL) -m 'long or not long' tests/crash/test_seeded_bugs.py $(if $(WHAT),-k '$(WHAT)') \
	  $(PYTEST_ARGS)

# Everything that counts what it has tried, with long settings; each leaves its counts in a file of its own, whether it
# fails or not, and the table at the end says what has failed.
RELIABILITY := build/reliability
RELIABILITY_CRASH_IMAGES ?= 1000000
RELIABILITY_KILL_ROUNDS ?= 10000
RELIABILITY_BIT_FLIPS ?= all
RELIABILITY_HISTORIES ?= 10000
RELIABILITY_FUZZ_INPUTS ?= $(FUZZ_INPUTS)
RELIABILITY_FUZZ_REPOSITORIES ?= $(FUZZ_REPOSITORIES)
# $(call counted,NAME,COMMAND): one that fails, or is killed before it has counted anything, fails the table.
counted = TXSTORE_RELIABILITY_JSON=$(RELIABILITY)/$(1).json $(TEST)/bin/python -m $(2) || \
	  echo '{"tests: $(1)": {"failures": 1}}' > $(RELIABILITY)/$(1)-failed.json
reliability: $(TEST)/stamp
	rm -rf $(RELIABILITY)
	mkdir -p $(RELIABILITY)
	$(call counted,crash,tests.crash --images $(RELIABILITY_CRASH_IMAGES))
	TXSTORE_CRASH_IMAGES=1 \
	  $(call counted,faults,pytest tests/crash/test_faults.py tests/crash/test_seeded_bugs.py --timeout 0 $(PYTEST_ARGS))
	TXSTORE_KILL_ROUNDS=$(RELIABILITY_KILL_ROUNDS) \
	  $(call counted,kills,pytest tests/system/processes/test_torture.py $(PYTEST_ARGS))
	TXSTORE_BIT_FLIPS=$(RELIABILITY_BIT_FLIPS) \
	  $(call counted,bits,pytest tests/maintenance/test_bit_flips.py $(PYTEST_ARGS))
	TXSTORE_HISTORIES=$(RELIABILITY_HISTORIES) \
	  $(call counted,histories,pytest tests/isolation/test_histories.py $(PYTEST_ARGS))
	$(call counted,fuzz,tests.fuzz --inputs $(RELIABILITY_FUZZ_INPUTS) --repositories $(RELIABILITY_FUZZ_REPOSITORIES))
	$(TEST)/bin/python -m tests.reliability $(RELIABILITY)

# `pythonpath` would put this folder, and the extensions in it, before those under the sanitizers.
sanitize: $(TEST)/stamp
	mkdir -p build/native
	$(call stress,thread,-fsanitize=thread)
	$(call stress,address,-fsanitize=address$(comma)undefined -fno-sanitize-recover=all)
	$(call sanitized,pytest -o pythonpath= --capture sys $(PARALLEL) tests/native $(PYTEST_ARGS))

# $(call tried,NAME,PATTERN OF ITS FILE,VARIABLES OF ITS INSTALLATION)
define tried
	$(PYTHON) -m venv $(DIST)-$(1)
	$(3) $(DIST)-$(1)/bin/python -m pip install --quiet --quiet "$$(ls $(DIST)/$(2))[test]"
	cd $(DIST)-tests && ../dist-$(1)/bin/python -m pytest $(PARALLEL) -m 'not long' $(DIST_TESTS) $(PYTEST_ARGS)
endef

# The tests come from the sdist, and meet what was installed: the source beside them is gone. The second time there is no compiler.
DIST := build/dist
DIST_TESTS := $(addprefix tests/,format history native store transactions)
dist:
	rm -rf $(DIST) $(DIST)-*
	$(PYTHON) -m venv $(DIST)-tools
	$(DIST)-tools/bin/python -m pip install --quiet --quiet build
	$(DIST)-tools/bin/python -m build --outdir $(DIST) .
	mkdir $(DIST)-tests
	tar --extract --gzip --strip-components 1 --directory $(DIST)-tests --file $(DIST)/*.tar.gz
	rm -rf $(DIST)-tests/txstore
	$(call tried,wheel,*.whl)
	$(call tried,sdist,*.tar.gz,CC=false TXSTORE_WERROR=0)

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f txstore/aio/__init__.pyi
	find txstore -name '*.so' -delete
