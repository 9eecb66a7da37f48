package options

// fixedValues are those of the options that take one of a few.
var fixedValues = map[string][]string{
	"durability":         {"full", "relaxed"},
	"log-format":         {"text", "json"},
	"log-level":          {"error", "warning", "info", "debug", "trace"},
	"output":             {"table", "json"},
	"tls-min-version":    {"VersionTLS12", "VersionTLS13"},
	"authorization-mode": {"Node", "RBAC", "Webhook", "ABAC", "AlwaysAllow", "AlwaysDeny"},
}

// Values are those that a shell can propose for an option; none if any text may be one.
func Values(name string) []string {
	if name == "o" {
		name = "output"
	}
	return fixedValues[name]
}
