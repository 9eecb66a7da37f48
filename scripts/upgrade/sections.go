package main

// sections are the report, in its order. Each compares facts of two releases; ours are the
// modules that a go.mod of Karve requires directly.
func sections(ours map[string]string) []section {
	return []section{
		{title: "Urgent upgrade notes", look: "From upstream's CHANGELOG. Find out for each whether Karve's users need to act; docs for users name those.", facts: urgentNotes, onlyNew: true},
		{title: "Mirrored functions", look: "Compare each with Karve's file that it names, change that file if it has to follow, then the hash in server/deviations/mirrors.", facts: mirrored, asDiff: true, gone: movedTo},
		{title: "Replaced symbols", look: "Karve runs its own code in place of these (server/deviations). Does that code still do what upstream's does?", facts: replaced, asDiff: true, gone: movedTo},
		{title: "Flags", look: "New flags reach users by themselves. Read their defaults, and look for one that concerns storage, serving or start-up.", facts: flags},
		{title: "Default options", look: "The constructors and defaulting functions of options and component configurations. Does one undo or repeat a default of Karve's (server/plan.go, server/apiserver/options.go)?", facts: defaults, asDiff: true},
		{title: "Feature gates", look: "At the release's own version. Does a gate that is on now change what Karve replaces, or cost memory or starts?", facts: gates},
		{title: "Controllers", look: "TestEveryDefaultControllerIsBuilt runs what is on by default.", facts: controllers},
		{title: "Admission plugins", look: "With their position, and whether they are on by default.", facts: admissionPlugins},
		{title: "API versions", look: "What is enabled by default. A version that disappears needs a migration of what is stored in it.", facts: apiVersions},
		{title: "API resources", look: "With everything enabled, from upstream's discovery documents.", facts: apiResources},
		{title: "Version priorities", look: "The first version of a group is usually the one that is stored.", facts: priorities},
		{title: "Hooks and checks", look: "Of the API server. Those that Karve disables or replaces are in bootstrap/DESIGN.md; each other one takes time at the start.", facts: hooks},
		{title: "Metrics", look: "Dashboards, alerts and our own tests may read one that is gone.", facts: metrics},
		{title: "RBAC bootstrap policy", look: "bootstrap computes it from upstream's tables; TestSeededClusterEqualsUpstreams compares.", facts: policy, asDiff: true},
		{title: "Other bootstrap objects", look: "Flow schemas, priority levels, priority classes and namespaces.", facts: bootstrapObjects, asDiff: true},
		{title: "Dependencies", look: "What upstream requires of the modules that a go.mod of Karve names itself.", facts: func(r *release) (facts, error) { return dependencies(r, ours), nil }},
	}
}
