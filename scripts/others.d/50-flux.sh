# shellcheck shell=bash disable=SC2034
software=Flux
untried="the module proxy refuses github.com/fluxcd/pkg/artifact, which source-controller v1.8.5 to v1.9.6 need, and v1.10 needs a newer Go; the other controllers read what source-controller fetches"
