# shellcheck shell=bash disable=SC2034
software=Kyverno
untried="its build was not finished when this was recorded"
