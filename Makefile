# Every target is one command; `make help` prints them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
EXTRAS = $(if $(TRAINER),trainer) $(if $(KUEUE),kueue) $(if $(ARGOCD),argocd)
.PHONY: help site demo demo-down train quick test test-cluster soak audit bench gpu gpu-wheels lint format cluster cluster-down images push publish tools schemas clean

help: ## print this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | column -t -s '|'
demo: ## cluster, images, dataset, PyTorchJob and MPIJob, ending in a table of results
	@hack/machine cluster && scripts/demo/run
demo-down: ## uninstall the demo and delete the namespace that it made, data and results included
	@scripts/demo/remove
train: ## the demo's trainer on this machine, two processes, no cluster, under a minute
	@hack/machine train && scripts/train
test: ## unit tests, chart tests, training on 1 to 3 processes: needs neither root nor a cluster; STRICT=1: no failed test is repeated
	@hack/machine train && scripts/test
test-cluster: ## the real operators, the demo and chart-testing on a one-node Kubernetes (root)
	@hack/machine cluster && scripts/test cluster
quick: ## what a change touches, in two minutes: its static checks and the tests nearest to it; BASE=REVISION, BUDGET=SECONDS
	@hack/machine train && hack/bootstrap python sample && hack/tools/build && .venv/bin/python -m hack.quick
soak: ## long runs before a release: hundreds of random kills; needs no cluster (those on it: scripts/test -m 'soak and e2e'). PARTS=campaign: faults against runs on three nodes (root); SEED=2, FAULTS=20, ONLY="a node dies for good", OPERATORS="pytorchjob mpijob trainjob elastic spare"
	@$(if $(PARTS),$(if $(filter campaign,$(PARTS)),hack/machine cluster && hack/campaign/on-nodes $(OPERATORS),$(error soak has no part '$(PARTS)'; there is: campaign)),hack/bootstrap python sample mpi netfs valgrind && .venv/bin/pytest -m 'soak and not e2e')
audit: ## known vulnerabilities of what the lock files name, by osv.dev's databases; offline: DATABASE="PyPI.zip Go.zip"
	@hack/bootstrap audit && .venv/bin/python -m hack.audit $(DATABASE)
bench: ## loader, checkpoints, steps, recipes and preparation against their peers; results in build/bench. PARTS=clients: what grows with 4,096 clients; PARTS=calm: what being watched costs; PARTS=jobs: what grows with jobs of 512 pods
	@benchmarks/cpu/run $(PARTS)
gpu: ## prove the CUDA path on one GPU in 9 minutes (PARTS=second: 9 more), with no network; without a GPU, the parts that a CPU can run
	@$(or $(PYTHON),python3) -m benchmarks.gpu.run $(if $(PARTS),--parts $(PARTS)) $(if $(OUT),--out $(OUT)) $(if $(SLOWNESS),--slowness $(SLOWNESS)) $(if $(CHECK),--check $(CHECK))
gpu-wheels: ## fill build/gpu-wheels with what `make gpu` needs on a machine that has torch and torchvision and no network
	@hack/bootstrap python && .venv/bin/python -m benchmarks.gpu.wheels
site: ## the documents as a site with search, in build/site; a link that leads nowhere is an error
	@hack/bootstrap site && .venv/bin/python -m hack.site
lint: ## ruff, mypy for 3.11 and 3.12, shellcheck, yamllint, generated files current
	@hack/lint
format: ## let ruff format and fix what it can
	@hack/bootstrap python && .venv/bin/ruff format -q . && .venv/bin/ruff check -q --fix .
cluster: ## a real one-node Kubernetes with both operators on this machine (root); idempotent; add TRAINER=1 KUEUE=1 ARGOCD=1; NODES=3 for several nodes
	@hack/machine cluster && hack/bootstrap cluster $(if $(filter-out 1,$(NODES)),nodes) && $(if $(NODES),TRAINYARD_NODES=$(NODES) )hack/cluster/up$(if $(strip $(EXTRAS)), && hack/cluster/extra $(EXTRAS))
cluster-down: ## take that cluster down; the machine is as before
	@hack/cluster/down
images: ## build the images on the local bases and load them into the cluster; build/bin gets the Helm to install with
	@hack/bootstrap cluster && hack/images/build && hack/images/load && hack/tools/build kubectl helm3
push: ## build the images and push them: BASE_IMAGE=nvcr.io/nvidia/pytorch:26.05-py3 make push REGISTRY=registry.example.com/team
	@hack/bootstrap cluster && hack/images/build && hack/images/push "$(REGISTRY)"
publish: ## push chart, Python package and images of one version, pull them again and compare: make publish REGISTRY=registry.example.com/team VERSION=1.2.3; DRY_RUN=1
	@hack/bootstrap python cluster && hack/tools/build helm3 && .venv/bin/python -m hack.publish --registry "$(REGISTRY)" --version "$(VERSION)"$(if $(IMAGES), --images "$(IMAGES)")$(if $(SOURCE), --source "$(SOURCE)")$(if $(DRY_RUN), --dry-run)
tools: ## build the pinned tools (helm3, helm4, ct ...) and link them in build/bin
	@hack/bootstrap python && hack/tools/build
schemas: ## regenerate the charts' values.schema.json and READMEs
	@hack/bootstrap python && hack/tools/build && hack/schemas/generate
clean: ## remove build/ and the virtual environment (caches outside the tree stay)
	@rm -rf build .venv
