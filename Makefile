# Plain `make` lists the targets.
GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
BIN     := bin/millrace

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

.PHONY: build
build: ## build bin/millrace
	$(GO) build -trimpath -ldflags "-X main.version=$(VERSION)" -o $(BIN) ./cmd/millrace

.PHONY: run
run: build ## build and serve on loopback, with ./data and a demo workspace
	./$(BIN) serve --data ./data --demo

.PHONY: test
test: build vet ## all tests (needs only Go)
	$(GO) test -timeout 10m ./...

.PHONY: vet
vet: ## gofmt, go vet, tidy go.mod
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo "run gofmt -w on these"; exit 1; }
	$(GO) vet ./...
