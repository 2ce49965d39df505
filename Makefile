# The commands that people need. `make` alone lists them.

GO  ?= go
# How many inputs each parser gets by `make check`: a count, since a time that ends within an input fails the run.
FUZZ ?= 30000x
# How often `make soak` repeats each storm, and the seed of its random choices; a new one without it.
ROUNDS ?= 200
SEED   ?=
# How long `make storm` goes on.
DURATION ?= 30m
STATICCHECK := v0.8.2
# A module of its own: what only real clients need is no dependency of the program.
CLIENTS := testdata/clients
# A module of its own, too: a host that embeds the router.
HOST := testdata/host
OPA := $(GO) run github.com/open-policy-agent/opa@$(shell $(GO) list -m -f '{{.Version}}' github.com/open-policy-agent/opa)

.PHONY: help
help: ## List the commands.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

.PHONY: build
build: ## Build bin/regent.
	@$(GO) build -o bin/regent ./server/cmd/regent

.PHONY: run
run: build ## Run the gateway: SQLite in ./data, a demo catalogue, a built-in provider.
	@exec ./bin/regent

# A test that needs PostgreSQL is skipped without it; here it is not missing.
test check soak storm: export REGENT_TEST_POSTGRES = required

.PHONY: test
test: postgres ## Run every test: Go, Rego, end-to-end scripts, real clients.
	@$(GO) test -timeout 8m ./... ./testdata/bench
	@$(OPA) test -b policies
	@cd $(HOST) && $(GO) test -count=1 -timeout 2m ./...
	@$(MAKE) --no-print-directory sdks

# Installs the npm packages that the lock file here names, unless they are.
NPM_CI := { cmp -s package-lock.json node_modules/.installed || { npm ci --silent && cp package-lock.json node_modules/.installed; }; }

# The tests' result is not cached: Go does not see that they depend on the program that they build.
.PHONY: sdks
sdks: node ## Run the official SDKs of OpenAI and Anthropic against the program; `make test` does.
	@cd $(CLIENTS) && $(NPM_CI)
	@cd $(CLIENTS) && $(GO) test -count=1 -timeout 3m ./...

.PHONY: clients
clients: node ## Install Codex and Claude Code (700 MB) below testdata/clients, and have each take a turn with a command.
	@cd $(CLIENTS)/agents && $(NPM_CI)
	@cd $(CLIENTS) && REGENT_TEST_AGENTS=required $(GO) test -count=1 -timeout 5m -v -run '^TestAgents' .

# Node.js with npm, for the clients that are written for it: installed where it is missing and Debian's packages can be.
.PHONY: node
node:
	@has_node() { command -v node >/dev/null && command -v npm >/dev/null; }; \
	if ! has_node && command -v apt-get >/dev/null; then \
		echo "installing nodejs and npm"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nodejs npm >/dev/null; \
	fi; \
	has_node || { echo "the tests with real clients need Node.js 18 or newer with npm: install both, and run make again" >&2; exit 1; }

# PostgreSQL, for the ledger's tests: installed where it is missing and Debian's packages can be, without the server that the
# package starts. The tests start their own.
.PHONY: postgres
postgres:
	@has_postgres() { \
		for dir in $$(dirname "$$(command -v initdb)") /usr/lib/postgresql/*/bin; do \
			if test -x "$$dir/initdb" && test -x "$$dir/postgres"; then return 0; fi; \
		done; return 1; }; \
	if ! has_postgres && command -v apt-get >/dev/null; then \
		echo "installing postgresql"; \
		settings=/etc/postgresql-common/createcluster.d; \
		mkdir -p $$settings && echo "create_main_cluster = false" >$$settings/regent.conf; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql >/dev/null; \
		rm -f $$settings/regent.conf; \
	fi; \
	has_postgres || { echo "the ledger's tests need PostgreSQL's server programs: install them, and run make again" >&2; exit 1; }

.PHONY: bench
bench: postgres ## Measure a call beside a bare reverse proxy, and the ledger on PostgreSQL (7 min; ARGS="-only c16").
	@$(GO) run ./testdata/bench $(ARGS)

.PHONY: check
check: postgres ## Check format, vet, staticcheck, policies, races, and fuzz each parser for a while.
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "not formatted:"; echo "$$unformatted"; exit 1; }
	@$(GO) vet ./... ./testdata/bench
	@$(GO) run honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK) ./... ./testdata/bench
	@$(GO) mod tidy -diff
	@for module in $(CLIENTS) $(HOST); do \
		(cd $$module && $(GO) vet ./... && $(GO) run honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK) ./... && $(GO) mod tidy -diff) || exit 1; done
	@$(OPA) check --strict --bundle --schema policies/schemas policies
	@$(OPA) fmt --fail --list policies
	@$(GO) test -timeout 15m -race ./ledger/... ./engine/... ./server/...
	@REGENT_TEST_ROUNDS=100 $(GO) test -count 1 -timeout 5m -run '^TestSimulationStorm$$' ./ledger
	@grep -rHoE --include='*_test.go' '^func Fuzz[A-Za-z]+' . | while IFS=: read -r file name; do \
		$(GO) test -run '^$$' -fuzz "^$${name#func }$$" -fuzztime $(FUZZ) -fuzzminimizetime 10x "$$(dirname "$$file")" || exit 1; done

.PHONY: soak
soak: postgres ## Run each storm ROUNDS times (200): kill -9, overload, histories, faults. SEED=N takes one again.
	@REGENT_TEST_ROUNDS=$(ROUNDS) REGENT_TEST_SEED=$(SEED) $(GO) test -count 1 -timeout 60m -v -run 'Storm$$' ./ledger ./ledger/memory ./ledger/sqldb ./server/cmd/regent

.PHONY: storm
storm: postgres ## Storm two gateways on one PostgreSQL for DURATION (30m): kill -9, cut connections; then compare.
	@REGENT_TEST_STORM_FOR=$(DURATION) REGENT_TEST_SEED=$(SEED) $(GO) test -count 1 -timeout 0 -v -run '^TestTwoProcessesStorm$$' ./server/cmd/regent
