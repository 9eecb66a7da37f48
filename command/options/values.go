package options

import "github.com/urfave/cli/v2"

// fixedValues are those of the options that take one of a few.
var fixedValues = map[string][]string{
	"durability":         {"full", "relaxed"},
	"log-format":         {"text", "json"},
	"log-level":          {"error", "warning", "info", "debug", "trace"},
	"output":             {"table", "json"},
	"proxy-mode":         {"iptables", "nftables", "ipvs"},
	"tls-min-version":    {"VersionTLS12", "VersionTLS13"},
	"authorization-mode": {"Node", "RBAC", "Webhook", "ABAC", "AlwaysAllow", "AlwaysDeny"},
}

// Values are those that a shell can propose for an option; none if any text may be one.
func Values(f cli.Flag) []string {
	name := f.Names()[0]
	if text, ok := f.(*cli.StringFlag); ok && name == "output" && text.Value == "" {
		return []string{"yaml"} // of commands that print objects if asked to, and no table
	}
	return fixedValues[name]
}
