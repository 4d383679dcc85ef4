# The repository's commands. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help

QUICKSTART_OUTPUT ?= runs/quickstart

.PHONY: docs kernels kernels-check help setup libtorch cluster-packages build images cluster cluster-down quickstart check test test-cuda-image prepare gpu-bundle gpu-check deny format generate bench bench-operator bench-chaos clean

help: ## List the commands
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# iproute2 for the network, containerd and what it calls for the node, buildah and debootstrap for images.
CLUSTER_PACKAGES := iproute2 containerd runc containernetworking-plugins nftables conntrack buildah debootstrap
CLUSTER_PROGRAMS := ip containerd runc nft conntrack buildah debootstrap
HAS_CLUSTER_PROGRAMS := [ "$$(command -v $(CLUSTER_PROGRAMS) | wc -l)" = $(words $(CLUSTER_PROGRAMS)) ]
HAS_BROWSER := command -v chromium chromium-browser google-chrome >/dev/null
# $(call install,PURPOSE,PACKAGES) installs packages of the system, where that needs nobody's password.
install = if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	echo "setup: installing $(2)"; export DEBIAN_FRONTEND=noninteractive; \
	{ apt-get install -y -qq $(2) || { apt-get update -qq && apt-get install -y -qq $(2); }; } >/dev/null; \
	else echo "setup: not root or no apt here: tests of $(1) skip without $(2)"; fi

setup: libtorch ## Install what tests need and is missing: libtorch, Chromium, programs of clusters
	@$(HAS_BROWSER) || $(call install,the report,chromium)
	@$(HAS_CLUSTER_PROGRAMS) || $(call install,clusters,$(CLUSTER_PACKAGES))

libtorch: ## Fetch the pinned libtorch once, with CUDA=1 CUDA's libraries too (an own LIBTORCH is respected)
	@CUDA=$(CUDA) bash trainer/torch/fetch-libtorch.sh

cluster-packages:
	@$(HAS_CLUSTER_PROGRAMS) || echo "cluster-packages: programs of clusters are missing here: \`make setup\` installs them"

kernels: ## Compile the kernels for GPUs (fetches the pinned nvcc once; needs no GPU)
	@bash trainer/torch/build-kernels.sh

kernels-check: ## Compile them and compare what they need with the committed table; no register may be spilled
	@bash trainer/torch/build-kernels.sh --check

build: libtorch ## Build rlctl, also as kubectl's plug-in, and rlt-trainer: target/release
	cargo build --release --locked --workspace --bin rlctl --bin rlt-trainer
	@for name in kubectl-rlt kubectl_complete-rlt; do ln -sf rlctl "target/release/$$name"; done

quickstart: libtorch ## Train a small transformer from one page of YAML: cold start, GRPO, report
	cargo build --profile quickstart --locked --workspace --bin rlctl --bin rlt-trainer
	target/quickstart/rlctl run examples/quickstart/job.yaml --output $(QUICKSTART_OUTPUT)
	@echo "report: $(QUICKSTART_OUTPUT)/report.html   model: $(QUICKSTART_OUTPUT)/export/"
	@echo "to train again: target/quickstart/rlctl run examples/quickstart/job.yaml --output $(QUICKSTART_OUTPUT) --overwrite"

# The image for GPUs needs CUDA's libraries: 2 GB to fetch, once. CUDA=0 leaves it out.
images: CUDA ?= 1
images: libtorch cluster-packages ## Build all images by docker, podman or buildah, and leave them as target/images/*.tar
	$(if $(filter 1,$(CUDA)),@bash trainer/torch/build-kernels.sh --check)
	cargo build --release --locked --workspace --bin rlt-trainer --bin rlt-operator
	charts/images.sh release dev target/images rlt-operator rlt-trainer $(if $(filter 1,$(CUDA)),rlt-trainer-cuda)

cluster: ## Start a real cluster of one node with both images and the chart installed, and say how to call kubectl
	@$(MAKE) --no-print-directory images CUDA=$(or $(CUDA),0) # its node has no GPU
	@kubectl=$$(cargo run --quiet --locked --package rlt-cluster -- up --chart charts/rl-operator \
		target/images/rlt-operator.tar target/images/rlt-trainer.tar) && \
	echo "$$kubectl apply -f examples/quickstart/job.yaml" && echo "$$kubectl get rltj --watch"

cluster-down: ## End that cluster
	cargo run --quiet --locked --package rlt-cluster -- down

check: ## What to run before each commit: formatting, rules, lints and all tests that need neither libtorch nor a cluster
	@tests/suite.sh check

test: setup ## Every check and every test, the quickest first
	@tests/suite.sh all

prepare: setup ## Make what tests need and must not make themselves: programs of clusters, Python packages, images
	@tests/suite.sh prepare

test-cuda-image: cluster-packages ## The tests of the image for GPUs, with CUDA's libraries fetched (make test skips them without)
	@CUDA=1 bash trainer/torch/fetch-libtorch.sh
	cargo test --package rlt-tests --locked --test images cuda::

gpu-bundle: libtorch kernels-check ## Pack what checks a machine with a GPU: target/gpu-bundle.tar.gz, less than 60 MiB
	cargo build --release --locked --workspace --bin rlt-trainer
	trainer/gpu-bundle.sh release target/gpu-bundle.tar.gz

# Two devices, so that they have something to exchange. A debug build on fibers takes longer than a GPU may.
gpu-check: libtorch ## The same checks on devices of CPU memory: lines of JSON
	@cargo build --quiet --locked --workspace --bin rlt-trainer --bin on-devices
	@RLT_STAND_IN_DEVICES=2 target/debug/on-devices target/debug/rlt-trainer gpu-check --all --limit 900

deny: ## Known weaknesses, licences, bans and duplicate versions of packages (needs cargo-deny)
	cargo deny check

format: ## Format everything
	cargo fmt --all

generate: ## Write what follows from code: messages, CRD, field reference, the chart's roles, the plain bundle and OLM's
	cargo run --quiet --package rlt-api --features kube --bin crdgen
	cargo run --quiet --package rlt-operator --bin chartgen
	UPDATE_CHANNEL=1 cargo test --quiet --package rlt-channel --test client messages
	UPDATE_BUNDLE=1 cargo test --quiet --package rlt-operator --test without_cluster the_plain_bundle

MDBOOK := 0.5.4

# Pages link to files outside of docs/ too: these are copied to the same place beside the site.
docs: ## Build the site from docs/: target/site/docs/index.html (compiles mdBook once; needs cargo alone)
	@target/tools/bin/mdbook --version 2>/dev/null | grep -qxF "mdbook v$(MDBOOK)" || cargo install --locked \
		--root target/tools mdbook --version $(MDBOOK) --no-default-features --features search
	@rm -rf target/site && target/tools/bin/mdbook build docs
	@grep -ohE '\]\(\.\./[^)#]+' docs/*.md | sed 's/^](\.\.\///' | sort -u | xargs cp -r --parents -t target/site

bench: libtorch ## Measure steps, updates and rollouts beside TRL, transformers and CTranslate2 (makes a Python venv for them)
	trainer/benches/run.sh

bench-operator: cluster-packages ## Measure jobs beside batch Jobs and JobSets on a cluster of fake nodes
	operator/benches/run.sh

bench-chaos: libtorch cluster-packages ## An hour of faults on a real node (CHAOS_MINUTES, CHAOS_SEED): the weights stay those of a quiet run
	cargo bench --package rlt-operator --locked --bench chaos

clean: ## Remove what was built and run here
	cargo clean
	rm -rf runs
