# The usual commands; scripts/README.md has all scripts.
.PHONY: help build test test-short ci bench

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile

build: ## build ./karve as a static binary
	scripts/build karve

test: ## run every test of the product (ten minutes)
	go test ./...

test-short: ## run the quick tests
	go test -short ./...

ci: ## run everything that has to pass before a change lands (twenty minutes)
	.ci/run

bench: ## measure a start, beside etcd and kube-apiserver
	scripts/bench start
