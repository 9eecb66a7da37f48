# shellcheck shell=bash disable=SC2034
software=Headlamp
untried="the module proxy refuses its server, and npm has its tools for plugins only, not its pages"
