# Every target is one command; `make help` prints them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
EXTRAS = $(if $(TRAINER),trainer) $(if $(KUEUE),kueue) $(if $(ARGOCD),argocd)
.PHONY: help site demo demo-down train quick test unit soak audit bench gpu gpu-wheels lint format cluster cluster-down images push tools schemas clean

help: ## print this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | column -t -s '|'
demo: ## cluster, images, dataset, PyTorchJob and MPIJob, ending in a table of results
	@scripts/machine cluster && scripts/demo/run
demo-down: ## uninstall the demo and delete its namespace, data and results included
	@scripts/demo/remove
train: ## the demo's trainer on this machine, two processes, no cluster, under a minute
	@scripts/machine train && scripts/train
test: ## everything that CI runs: lint, unit tests, chart tests, end-to-end tests on the cluster
	@scripts/machine cluster && scripts/test
quick: ## what a change touches, in two minutes: its static checks and the tests nearest to it; BASE=REVISION, BUDGET=SECONDS
	@scripts/machine train && scripts/bootstrap python sample && scripts/tools/build && .venv/bin/python -m scripts.quick
unit: ## lint, unit tests and chart tests: what needs neither root nor a cluster
	@scripts/machine train && scripts/test --without-cluster
soak: ## long runs before a release: hundreds of random kills; needs no cluster (those on it: scripts/test -m 'soak and e2e')
	@scripts/bootstrap python sample mpi netfs valgrind && .venv/bin/pytest -m 'soak and not e2e'
audit: ## known vulnerabilities of what the lock files name, by osv.dev's databases; offline: DATABASE="PyPI.zip Go.zip"
	@scripts/bootstrap audit && .venv/bin/python -m scripts.audit $(DATABASE)
bench: ## loader, checkpoints, steps and preparation against their peers; results in build/bench
	@scripts/bench/run $(PARTS)
gpu: ## prove the CUDA path on one GPU in 9 minutes, with no network; without a GPU, the parts that a processor can run
	@$(or $(PYTHON),python3) -m scripts.gpu.run $(if $(PARTS),--parts $(PARTS))
gpu-wheels: ## fill build/gpu-wheels with what `make gpu` needs on a machine that has torch and torchvision and no network
	@scripts/bootstrap python && .venv/bin/python -m scripts.gpu.wheels
site: ## the documents as a site with search, in build/site; a link that leads nowhere is an error
	@scripts/bootstrap site && .venv/bin/python -m scripts.site
lint: ## ruff, mypy for 3.11 and 3.12, shellcheck, yamllint, generated files current
	@scripts/lint
format: ## let ruff format and mend what it can
	@scripts/bootstrap python && .venv/bin/ruff format -q . && .venv/bin/ruff check -q --fix .
cluster: ## a real one-node Kubernetes with both operators on this machine (root); idempotent; add TRAINER=1 KUEUE=1 ARGOCD=1
	@scripts/machine cluster && scripts/bootstrap cluster && scripts/cluster/up$(if $(strip $(EXTRAS)), && scripts/cluster/extra $(EXTRAS))
cluster-down: ## take that cluster down; the machine is as before
	@scripts/cluster/down
images: ## build the images on the local bases and load them into the cluster
	@scripts/bootstrap cluster && scripts/images/build && scripts/images/load
push: ## build the images and push them: BASE_IMAGE=nvcr.io/nvidia/pytorch:26.05-py3 make push REGISTRY=registry.example.com/team
	@scripts/bootstrap cluster && scripts/images/build && scripts/images/push "$(REGISTRY)"
tools: ## build the pinned tools (helm3, helm4, ct ...) and link them in build/bin
	@scripts/bootstrap python && scripts/tools/build
schemas: ## regenerate the charts' values.schema.json and READMEs
	@scripts/bootstrap python && scripts/tools/build && scripts/schemas/generate
clean: ## remove build/ and the virtual environment (caches outside the tree stay)
	@rm -rf build .venv
