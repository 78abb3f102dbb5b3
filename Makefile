# Fencepost's build. `make` alone lists the targets.

# Not in go.mod: tools of ours must not become dependencies of users.
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

# Starts one MongoDB server for all the tests of a command, building one where none can be pulled; see
# internal/mongotest. It says so and goes on when no server can be had.
WITHSERVER := go run ./internal/mongotest/withserver --

# Modules of their own: what they need never reaches users who do not use them. In each: $(call inmodules,COMMAND)
MODULES := bench otelfencepost cmd/internal/ui/browsertest
inmodules = @set -e; for m in $(MODULES); do echo "cd $$m && $(1)"; (cd $$m && $(1)); done

# Arguments for go test, for example: make test ARGS='-run TestLock ./lock/...'
ARGS ?= ./...

# Without C everywhere, as in the image: one compilation of everything serves programs, tests and image.
export CGO_ENABLED ?= 0

# How a user runs the binaries should not depend on where they were built.
GOBUILD := go build -trimpath

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: build
build: ## build bin/worker, bin/producer and bin/fencepost
	$(GOBUILD) -o bin/ ./cmd/worker ./cmd/producer ./cmd/fencepost

# The container image: see deploy/Dockerfile.
IMAGE ?= fencepost
PLATFORM ?= linux/$(shell go env GOARCH)
CONTEXT ?= bin/image

.PHONY: image
image: image-context ## build the container image fencepost (IMAGE=name:tag PLATFORM=linux/arm64)
	docker build --tag $(IMAGE) --platform $(PLATFORM) $(CONTEXT)

# What the image is built from, in CONTEXT. There is no C library in an image from scratch.
.PHONY: image-context
image-context: export CGO_ENABLED = 0
image-context:
	rm -rf $(CONTEXT)/bin
	mkdir -p $(CONTEXT)/bin $(CONTEXT)/data
	cp deploy/Dockerfile $(CONTEXT)/
	go run ./tools/licences >$(CONTEXT)/LICENCES.txt
	GOOS=$(word 1,$(subst /, ,$(PLATFORM))) GOARCH=$(word 2,$(subst /, ,$(PLATFORM))) \
		$(GOBUILD) -ldflags '-s -w' -o $(CONTEXT)/bin/ ./cmd/worker ./cmd/producer ./cmd/fencepost
	go run ./tools/licences -sbom $(CONTEXT)/bin/* >$(CONTEXT)/SBOM.json

.PHONY: demo
demo: ARGS =
demo: build ## build, then publish 11,000 files, kill a worker in the middle, and check every byte (ARGS=--ui: watch it with a browser)
	bin/fencepost demo $(ARGS)

# -parallel: the tests that may run concurrently wait for much of their time. With twice as many, or with three packages at a time instead of
# one per processor, two slow processors are so busy that the server answers too late. -vet=off: that is what make vet is for.
GOTEST := go test -vet=off -count=1 -parallel 4 -timeout 40m

# Packages whose tests do little but wait, for leases to expire or for programs to end: they run one by one beside the others.
WAITING := ./examples/... ./lock/locktest ./lock/mongolock ./lock/sqlitelock ./internal/mongotest/... ./cmd/internal/workercmd ./cmd/producer

.PHONY: test
test: ## run all tests, with a MongoDB server of their own
	$(WITHSERVER) $(MAKE) --no-print-directory -j2 suites

.PHONY: suites busy waiting
ifeq ($(ARGS),./...)
suites: busy waiting # with the server that test has started
else
suites:
	$(GOTEST) $(ARGS)
endif
	$(call inmodules,go test -vet=off -count=1 -timeout 40m ./...)

busy:
	all=$$(go list ./...) && waiting=$$(go list $(WAITING)) && $(GOTEST) $$(printf '%s\n' $$all $$waiting | sort | uniq -u)

waiting:
	$(GOTEST) -p 1 $(WAITING)

# N schedules from SEED on, and then four rules dropped, which the schedules must notice; all of those: make sim ARGS=-mutants=all
# One schedule, with everything that happens in it: make sim ARGS=-seed=47
N ?= 100000
SEED ?= 1

.PHONY: sim
sim: ARGS =
sim: ## play 100,000 random schedules of faults in virtual time (N=1000 SEED=1), and some of docs/mutants.md (ARGS=-mutants=all)
	go run ./tools/sim -schedules $(N) -first $(SEED) $(ARGS)

# Everything that ARGS says is for chaos, for example: make chaos ARGS='--scenario kill --seed 7'
.PHONY: chaos
chaos: ARGS =
chaos: ## break everything around workers and producers, and check every message (ARGS=--help)
	go build -o bin/ ./tools/chaos
	bin/chaos $(ARGS)

# NODES is how many messages there are. As root; S3 is versitygw if that is in PATH, or if FENCEPOST_TEST_S3GATEWAY names it.
NODES ?= 200000

.PHONY: nodes
nodes: ## switch off the host of a type's holder in the middle of a drain, and see another one go on: each kind of store (NODES=20000)
	$(WITHSERVER) env FENCEPOST_TEST_REQUIRE_NODES=1 go test -count=1 -v -timeout 2h ./integration -run TestHostsThatShareNothing -nodes $(NODES)

# One sequence again: make drills ARGS='-first 7 -sequences 1'
.PHONY: drills
drills: ARGS = -sequences 100 -record $(CURDIR)/docs/drills.md
drills: ## play 200 random sequences of what operators do to databases, files and hosts, and write docs/drills.md
	$(WITHSERVER) go test -count=1 -parallel 8 -timeout 12h ./integration/drills -run TestRandomDisasters $(ARGS)

# ARGS chooses targets: make fuzz FUZZTIME=20s ARGS='-run storage'
FUZZTIME ?= 1h

.PHONY: fuzz
fuzz: ARGS =
fuzz: ## fuzz every decoder, one after the other, an hour each (FUZZTIME=20s); stops at the first finding: docs/fuzzing.md
	go run ./tools/fuzz -time $(FUZZTIME) $(ARGS)

.PHONY: attack
attack: ## run every attack of docs/security.md, and print limits and what was measured
	$(WITHSERVER) go run ./tools/attack

# BENCH chooses suites and flags: make bench BENCH='storage --quick'
BENCH ?= storage

.PHONY: bench
bench: ## compare with others on this machine, and write bench/RESULTS.md (some minutes; best as root, on an idle machine)
	cd bench && go run . $(BENCH)

# SOAK chooses flags: make soak SOAK='--duration 5m --types 50'
.PHONY: soak
soak: ## half an hour of 200 types on both backends: fails if memory, files, connections or documents grow
	$(WITHSERVER) go run ./tools/soak $(SOAK)

.PHONY: check
check: format vet staticcheck race ## run everything that must be clean: gofmt, go vet, staticcheck, race detector

# All Go files below, also those of other modules, which go fmt ./... does not see.
.PHONY: format
format:
	@files=$$(gofmt -l .); if [ -n "$$files" ]; then echo "gofmt would change:"; echo "$$files"; exit 1; fi

.PHONY: vet
vet:
	go vet ./...
	$(call inmodules,go vet ./...)

.PHONY: staticcheck
staticcheck:
	go run $(STATICCHECK) ./...
	$(call inmodules,go run $(STATICCHECK) ./...)

# The packages whose goroutines share memory. ARGS=./integration builds the programs with the race detector and runs them all: eight minutes.
# -short: the race detector is about interleavings, which the long fault tests repeat rather than widen; see also internal/race. -gcflags:
# SQLite is not ours, and took a third of the time with the race detector inside. GORACE: without the second that every process otherwise
# sleeps before it exits. ARGS: the packages that take longest come first, so that none of them runs alone at the end.
# Packages that run at the same time: one more than there are processors, as most of them wait for much of their time.
PACKAGES := $(shell expr `getconf _NPROCESSORS_ONLN` + 1)
.PHONY: race
race: ARGS = ./worker ./queue/mongoqueue . ./internal/backlog ./internal/combine ./cmd/internal/... ./internal/sqlitedb ./lock/... ./queue/... ./storage/... ./worker/...
race:
	$(WITHSERVER) env CGO_ENABLED=1 GORACE=atexit_sleep_ms=0 go test -race -vet=off '-gcflags=modernc.org/...=-race=false' -short -count=1 -p $(PACKAGES) -parallel 4 -timeout 20m $(ARGS)
	cd otelfencepost && CGO_ENABLED=1 go test -race -vet=off -count=1 ./...

# go run itself exits with 1 whatever its program does, so govulncheck is built first. Findings end it with 3; anything else that is not
# 0 is about reaching its database or the program.
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0
VULNDB := https://vuln.go.dev

.PHONY: vulncheck
vulncheck: ## look for known vulnerabilities in what the programs call; says so and goes on where the database is out of reach
	@curl -sf --max-time 20 -o bin/tools/vulndb --create-dirs $(VULNDB)/index/db.json || { echo "!!! NOT RUN: vulncheck, as its database at $(VULNDB) is out of reach"; exit 0; }; \
	code=0; \
	{ GOBIN=$(CURDIR)/bin/tools timeout 5m go install $(GOVULNCHECK) && timeout 10m bin/tools/govulncheck -db $(VULNDB) ./...; } >bin/tools/govulncheck.log 2>&1 || code=$$?; \
	case $$code in \
	0) echo "vulncheck: nothing known" ;; \
	3) cat bin/tools/govulncheck.log; exit 1 ;; \
	*) echo "!!! NOT RUN: vulncheck, as govulncheck or its database cannot be had: $$(tail -n 1 bin/tools/govulncheck.log | cut -c1-200)" ;; \
	esac

# Not in any go.mod: a chart needs no library of ours, and Helm no part in our dependencies.
HELM := helm.sh/helm/v3/cmd/helm@v3.19.0

.PHONY: helm
helm: ## lint and render deploy/helm with Helm itself, which is built from source first (minutes)
	GOBIN=$(CURDIR)/bin/tools go install $(HELM)
	PATH="$(CURDIR)/bin/tools:$$PATH" go test -count=1 ./cmd/worker -run Helm -v

.PHONY: licences
licences: ## print the licences of everything in the programs; fails if one is not accepted
	@go run ./tools/licences

.PHONY: mutants
mutants: ARGS =
mutants: ## drop one safety rule after the other, which tests must notice: docs/mutants.md (ARGS=-fast, ARGS='-run lock')
	$(WITHSERVER) go run ./tools/mutants $(ARGS)

# One after the other: they write to the same file.
.PHONY: docs
docs: ## write the generated parts of docs/ (commands, metrics)
	go test -count=1 -p 1 ./cmd/fencepost ./cmd/producer ./cmd/internal/workercmd ./worker/metrics -run '^TestReference$$' -update

.PHONY: clean
clean: ## remove what build made (the test server's image: integration/mongo-image/build.sh --clean)
	rm -rf bin
