# Plain `make` lists the targets. All of them need only Go, git and make; modules come through GOPROXY.
GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
BIN     := bin/millrace

# Most tests of clusters wait, for leaders and disks: so many of a package run at once, and so many packages, that the cores have something to do meanwhile.
AT_ONCE := -p 3 -parallel 4

# The packages in whose tests goroutines meet: not wal/durable, shard/eventlog/{blocks,event,files,stretch} and shard/cluster/facts, which start none; where
# others use these at once, they are under the race detector as a part of those. Those whose tests run the server as a process of its own (cmd, loadtest),
# and the console's pages, are under it in `make stress`, as all are. They begin in this order: what takes longest, so that none is left alone in the end.
RACE_PACKAGES ?= ./shard/cluster ./wal/quorum ./shard ./api ./shard/eventlog ./wal ./shard/replica ./shard/machine ./shard/backup $(addprefix ./wal/quorum/,disk frames host) ./shard/outgoing ./shard/procs \
	$(addprefix ./shard/cluster/,calls cut image placement promise routes) ./api/control ./api/keys ./api/ratelimit
# Those of them that `make test` leaves to the race detector: nothing is left out there, and what is slow in it is waiting.
RACE_ALONE := ./wal/quorum $(addprefix ./wal/quorum/,disk frames host) ./shard/cluster $(addprefix ./shard/cluster/,calls cut image promise routes) ./shard/outgoing ./shard/procs \
	$(addprefix ./api/,control keys ratelimit)
HAS_RACE = [ "$$($(GO) env CGO_ENABLED)" = 1 ] && command -v $$($(GO) env CC) >/dev/null
# What takes longest of the rest, to begin with.
FIRST := ./cmd/millrace ./shard/eventlog ./shard ./api ./bench ./loadtest
UNIT_PACKAGES ?= ./...
test: UNIT_PACKAGES = $(shell $(HAS_RACE) && left='$(RACE_ALONE:.%=-e millrace%)' || left='-e -'; $(GO) list $(FIRST) ./... | grep -vxF $$left)
# -short leaves out what has no more than one thing at a time, and repeats the rest less often; `make stress` has all of it.
RACE_FLAGS    ?= -short -timeout 30m
# What go build takes for what matters: it builds everything anew for that, so that tests go without.
PGO := cmd/millrace/default.pgo
TESTS := test unit vet lint race fuzz test-clients test-browser stress cover
# Tests have no tables for debuggers, a tenth of what compiling takes and up to half of what linking does, and no fast zstd, which comes with Pebble in C and
# compresses nothing here. Without the paths of this machine, what was compiled in one clone needn't be in another; test runs are repeated all the same.
$(TESTS): export GOFLAGS += -pgo=off -trimpath -gcflags=all=-dwarf=false -ldflags=-s
test: AGAIN := -count=1
# Where the clients from npm are, if they are those of the locks. The tests that run them are skipped elsewhere: `make test` installs clients before.
CLIENTS   := $(CURDIR)/bin/clients
INSTALLED  = $(shell command -v node >/dev/null && cat loadtest/clients/package-lock.json loadtest/clients/readers/package-lock.json | cmp -s - $(CLIENTS)/installed && echo $(CLIENTS))
test: export MILLRACE_CLIENTS = $(INSTALLED)
$(TESTS): export CGO_CFLAGS := -g0 -O0
# The compiler collects its garbage less often, which saves a fifth of its work; tests run as ever, and with their files in memory.
build unit vet lint race: export GOGC := 400
AS_EVER := -exec $(CURDIR)/loadtest/as-ever
# A program with the race detector sleeps for a second before it ends.
race: export GORACE ?= atexit_sleep_ms=10
# How long each fuzz target runs: a time (30s) or a number of inputs (10000x).
FUZZTIME      ?= 1000x
# Whose branches guide the choice of inputs: those of all packages, which are all compiled once more for that. So few inputs as in `make test` gain nothing by it.
FUZZ_GUIDE    ?= -fuzz .
test: FUZZ_GUIDE :=
# go test takes -fuzz for one package only; otherwise it builds all at once, each with its own last name.
FUZZ_BUILDS   ?= -n 1
test: FUZZ_BUILDS :=
# How often a failed test is tried again. CI says 1, and one that passes then is printed as FLAKY: a fault to be found in `make stress`.
RERUNS        ?= 0
STATICCHECK   ?= honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOTESTSUM     ?= gotest.tools/gotestsum@v1.13.0

# $(call go_test,name,flags,packages) runs tests, and says which of them failed at first. A data race is no matter of luck: it ends the run.
define go_test
echo '$(GO) test $(2) $(3)'; \
if [ $(RERUNS) -eq 0 ]; then $(GO) test $(2) $(3); else \
	mkdir -p bin; rm -f bin/flaky-$(1); status=0; \
	$(GO) run $(GOTESTSUM) --format standard-quiet --rerun-fails=$(RERUNS) --rerun-fails-run-root-test --rerun-fails-abort-on-data-race \
		--rerun-fails-report bin/flaky-$(1) --packages '$(3)' -- $(2) || status=$$?; \
	if [ -s bin/flaky-$(1) ]; then grep -v ': \([0-9]*\) runs, \1 failures' bin/flaky-$(1) | sed 's/^/FLAKY: /'; fi; exit $$status; \
fi
endef

# One target after the other, also with -j: `make test` installs what its tests use, and each target has work for all cores.
.NOTPARALLEL:

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

.PHONY: build
build: ## build bin/millrace
	$(GO) build -trimpath -ldflags "-X main.version=$(VERSION)" -o $(BIN) ./cmd/millrace

.PHONY: run
run: build ## build and serve on 127.0.0.1:8080, with ./data and a demo workspace
	./$(BIN) serve --data ./data --demo

.PHONY: cluster
cluster: build ## build and serve a cluster of three nodes on 127.0.0.1:8080, :8082 and :8084, with ./data/cluster and a demo workspace
	@pids=; for n in 1 2 3; do \
		./$(BIN) serve --node $$n --raft 127.0.0.1:708$$n --members 1=127.0.0.1:7081,2=127.0.0.1:7082,3=127.0.0.1:7083 --raft-insecure \
			--data ./data/cluster/$$n --listen 127.0.0.1:$$((8078+2*n)) --admin 127.0.0.1:$$((8079+2*n)) --demo --log-level warn & \
		pids="$$pids $$!"; \
	done; \
	stop() { trap '' INT TERM; kill $$pids 2>/dev/null; wait $$pids; exit; }; trap stop INT TERM; \
	wait $$pids

.PHONY: test
test: vet lint clients unit race fuzz ## everything that decides whether a change lands, in less than 10 minutes on 2 cores

.PHONY: unit
unit: ## the tests alone
	@$(call go_test,unit,$(AS_EVER) -vet=off -timeout 30m $(AGAIN) $(AT_ONCE),$(UNIT_PACKAGES))

.PHONY: vet
vet: ## gofmt, go vet
	@files=$$(gofmt -l $$(git ls-files --cached --others --exclude-standard '*.go')); test -z "$$files" || { echo "run gofmt -w on:"; echo "$$files"; exit 1; }
	$(GO) vet ./...

.PHONY: lint
lint: ## staticcheck, with the checks of staticcheck.conf
	@if $(GO) run $(STATICCHECK) -version >/dev/null 2>&1; then \
		echo '$(GO) run $(STATICCHECK) ./...'; $(GO) run $(STATICCHECK) ./...; \
	else \
		echo 'lint: SKIPPED, $(STATICCHECK) is out of reach'; \
	fi

.PHONY: race
race: ## the tests of the concurrent packages under the race detector (needs a C compiler)
	@if $(HAS_RACE); then \
		$(call go_test,race,$(AS_EVER) -race -vet=off $(AGAIN) $(AT_ONCE) $(RACE_FLAGS),$(RACE_PACKAGES)); \
	else \
		echo 'race: SKIPPED, the race detector needs a C compiler'; \
	fi

.PHONY: fuzz
fuzz: ## each fuzz target for FUZZTIME (make fuzz FUZZTIME=1m)
	@cache=$$($(GO) env GOCACHE)/fuzz/millrace; folders=$$(git grep --untracked -l '^func Fuzz' -- '*_test.go' | xargs -n 1 dirname | sort -u | sed 's|^|./|'); \
	echo $$folders | GOGC=400 xargs $(FUZZ_BUILDS) $(GO) test -c -vet=off $(FUZZ_GUIDE) -ldflags '-s -w' -o $(CURDIR)/bin/fuzz/ || exit 1; \
	for folder in $$folders; do \
		binary=$(CURDIR)/bin/fuzz/$$(basename $$folder).test; \
		for name in $$(cd $$folder && $$binary -test.list '^Fuzz'); do \
			echo "fuzz $$folder $$name"; \
			(cd $$folder && $$binary -test.run '^$$' -test.fuzz "^$$name\$$" -test.fuzztime $(FUZZTIME) -test.fuzzminimizetime 100x \
				-test.fuzzcachedir $$cache/$$folder -test.timeout 30m) || exit 1; \
		done || exit 1; \
	done

.PHONY: clients
clients: ## install the clients from npm that tests use (needs node and npm)
	@if ! command -v node >/dev/null || ! command -v npm >/dev/null; then \
		echo 'clients: SKIPPED, they need node and npm'; \
	elif [ -z '$(INSTALLED)' ]; then \
		loadtest/clients/install $(CLIENTS) || { test $$? -eq 75 && echo 'clients: SKIPPED, the npm registry is out of reach'; }; \
	fi

.PHONY: test-clients
test-clients: clients ## the clients from npm, unchanged, against the real server
	@if [ -n '$(INSTALLED)' ]; then \
		echo '$(GO) test -count 1 -run ^TestClients ./cmd/millrace'; MILLRACE_CLIENTS='$(INSTALLED)' $(GO) test -count 1 -run '^TestClients' ./cmd/millrace; \
	fi

.PHONY: test-browser
test-browser: ## the hosted pages and the console in Chromium, which apt-get installs where it is missing
	@found() { command -v chromium || command -v chromium-browser || command -v google-chrome; }; \
	if [ -z "$$MILLRACE_BROWSER" ] && ! found >/dev/null; then \
		echo 'apt-get install chromium'; sudo=; [ "$$(id -u)" = 0 ] || sudo='sudo -n'; \
		{ $$sudo apt-get -q update && $$sudo apt-get -q -y install --no-install-recommends chromium; } >/dev/null 2>&1 || true; \
	fi; \
	if [ -n "$$MILLRACE_BROWSER" ] || found >/dev/null; then \
		echo '$(GO) test -count 1 -run ^TestBrowser ./api ./api/console'; MILLRACE_REQUIRE_BROWSER=1 $(GO) test -count 1 -run '^TestBrowser' ./api ./api/console; \
	else \
		echo 'test-browser: SKIPPED, there is no Chromium, and apt-get could not install one'; \
	fi

.PHONY: check
check: test ## the same as test

.PHONY: stress
stress: ## the long versions of the tests that have one (hours)
	MILLRACE_STRESS=1 $(GO) test -count 1 -timeout 6h -v ./...
	$(MAKE) race RACE_PACKAGES=./... RACE_FLAGS='-count 1 -timeout 2h'
	$(MAKE) fuzz FUZZTIME=5m

.PHONY: bench
bench: ## measure on this machine and print the figures of the README; BENCH_FLAGS="-part decoder" measures some of them
	$(GO) run -pgo=$(PGO) ./bench $(BENCH_FLAGS)

.PHONY: pgo
pgo: ## profile the server under load for half a minute, into the file that go build takes for what matters
	$(GO) run ./bench -profile $(PGO)
	@ls -l $(PGO)

.PHONY: loadtest
loadtest: build ## send load to the server of `make run`, and check what it acknowledged
	./$(BIN) loadtest --key millrace-demo-key --duration 10s --connections 8 --verify

.PHONY: cover
cover: ## coverage of all packages by all tests
	$(GO) test -timeout 10m -coverpkg ./... -coverprofile bin/cover.out ./...
	$(GO) tool cover -func bin/cover.out | tail -1
	$(GO) tool cover -html bin/cover.out -o bin/cover.html

.PHONY: clean
clean: ## remove bin; ./data stays
	rm -rf bin
