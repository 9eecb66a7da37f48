package main

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var versions = regexp.MustCompile(`^v1(\.\d+\.\d+)(-(?:alpha|beta|rc)\.\d+)?$`)

// stagingVersion returns the version of the staging modules: v0.37.1 for v1.37.1.
func stagingVersion(version string) (string, error) {
	m := versions.FindStringSubmatch(version)
	if m == nil {
		return "", fmt.Errorf("%q is no version of Kubernetes: want one like v1.37.1", version)
	}
	return "v0" + m[1] + m[2], nil
}

// newer returns the newer of two semantic versions; an empty one is older than any.
func newer(a, b string) string {
	if a == "" || b != "" && compareVersions(a, b) < 0 {
		return b
	}
	return a
}

// compareVersions orders semantic versions, without build metadata.
func compareVersions(a, b string) int {
	a, _, _ = strings.Cut(a, "+")
	b, _, _ = strings.Cut(b, "+")
	coreA, preA, hasA := strings.Cut(strings.TrimPrefix(a, "v"), "-")
	coreB, preB, hasB := strings.Cut(strings.TrimPrefix(b, "v"), "-")
	if c := compareIdentifiers(coreA, coreB); c != 0 || hasA == hasB && !hasA {
		return c
	}
	if hasA != hasB { // a pre-release comes before its release
		if hasA {
			return -1
		}
		return 1
	}
	return compareIdentifiers(preA, preB)
}

// compareIdentifiers orders lists with dots between them: numbers by value and before words.
func compareIdentifiers(a, b string) int {
	return slices.CompareFunc(strings.Split(a, "."), strings.Split(b, "."), func(a, b string) int {
		x, wordA := strconv.ParseUint(a, 10, 64)
		y, wordB := strconv.ParseUint(b, 10, 64)
		switch {
		case wordA == nil && wordB == nil:
			return cmp.Compare(x, y)
		case wordA == nil:
			return -1
		case wordB == nil:
			return 1
		}
		return cmp.Compare(a, b)
	})
}
