package apiserver

import (
	"fmt"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// difference walks two values in parallel, including unexported fields, and records where they
// differ. Functions are equal if they have the same code, whatever variables they capture. It
// ignores what changes by itself while a server runs.
type difference struct {
	found    []string
	compared int
	seen     map[[2]uintptr]bool
	except   *regexp.Regexp  // paths that may differ
	excepted map[string]bool // the paths among them that were met
	ignore   *regexp.Regexp  // paths that are not compared
}

func newDifference(except, ignore *regexp.Regexp) *difference {
	return &difference{seen: map[[2]uintptr]bool{}, except: except, excepted: map[string]bool{}, ignore: ignore}
}

// moving are packages whose types hold locks, times, counters and connections, which change by
// themselves.
var moving = []string{"sync", "sync/atomic", "internal/sync", "time", "context", "go.etcd.io/", "google.golang.org/", "github.com/prometheus/", "go.opentelemetry.io/", "k8s.io/utils/clock", "k8s.io/component-base/metrics"}

func isMoving(t reflect.Type) bool {
	return slices.ContainsFunc(moving, func(p string) bool {
		return t.PkgPath() == p || strings.HasPrefix(t.PkgPath(), p) && strings.Contains(p, ".")
	})
}

func (d *difference) compare(path string, a, b reflect.Value) {
	if d.ignore.MatchString(path) {
		return
	}
	if found := d.except.FindString(path); found != "" {
		d.excepted[found] = true
		return
	}
	if a.IsValid() != b.IsValid() || a.IsValid() && a.Type() != b.Type() {
		d.differ(path, describe(a), describe(b))
		return
	}
	if !a.IsValid() || isMoving(a.Type()) {
		return
	}
	d.compared++
	switch a.Kind() {
	case reflect.Pointer:
		pair := [2]uintptr{a.Pointer(), b.Pointer()}
		if pair[0] == pair[1] || d.seen[pair] {
			return
		}
		d.seen[pair] = true
		d.compare(path, a.Elem(), b.Elem())
	case reflect.Interface:
		d.compare(path, a.Elem(), b.Elem())
	case reflect.Struct:
		for i := range a.NumField() {
			d.compare(path+"."+a.Type().Field(i).Name, a.Field(i), b.Field(i))
		}
	case reflect.Map:
		d.compareMaps(path, a, b)
	case reflect.Slice, reflect.Array:
		if a.Len() != b.Len() {
			d.differ(path, fmt.Sprintf("%d elements", a.Len()), fmt.Sprintf("%d elements", b.Len()))
			return
		}
		for i := range a.Len() {
			d.compare(fmt.Sprintf("%s[%d]", path, i), a.Index(i), b.Index(i))
		}
	case reflect.Func, reflect.Chan, reflect.UnsafePointer:
		if x, y := describe(a), describe(b); x != y {
			d.differ(path, x, y)
		}
	default:
		if !a.Equal(b) {
			d.differ(path, describe(a), describe(b))
		}
	}
}

func (d *difference) compareMaps(path string, a, b reflect.Value) {
	if a.Len() != b.Len() {
		d.differ(path, fmt.Sprintf("%d keys", a.Len()), fmt.Sprintf("%d keys", b.Len()))
		return
	}
	for _, key := range a.MapKeys() {
		if k := key.Kind(); k == reflect.Pointer || k == reflect.Chan {
			return // some keys have no counterpart
		}
		in := fmt.Sprintf("%s[%s]", path, describe(key))
		other := b.MapIndex(key)
		if !other.IsValid() {
			d.differ(in, "there", "missing")
			continue
		}
		d.compare(in, a.MapIndex(key), other)
	}
}

func (d *difference) differ(path, a, b string) {
	d.found = append(d.found, fmt.Sprintf("%s: got %s, want %s", path, a, b))
}

// inlined matches the name of a function into which a closure of another function was inlined.
// number matches the closure's number.
var (
	inlined = regexp.MustCompile(`^.*/(apiserver|replacements)\.(\(\*\w+\)\.)?\w+\.`)
	number  = regexp.MustCompile(`\.func\d+$`)
)

func describe(v reflect.Value) string {
	switch {
	case !v.IsValid():
		return "nothing"
	case v.Kind() == reflect.Func:
		if v.IsNil() {
			return "no function"
		}
		name := inlined.ReplaceAllString(runtime.FuncForPC(v.Pointer()).Name(), "")
		return number.ReplaceAllString(name, "")
	case v.Kind() == reflect.Chan:
		return fmt.Sprintf("a channel: %t", !v.IsNil())
	case v.Kind() == reflect.UnsafePointer:
		return fmt.Sprintf("a pointer: %t", !v.IsNil())
	case v.Kind() == reflect.String:
		return fmt.Sprintf("%q", v.String())
	case v.CanInt():
		return fmt.Sprint(v.Int())
	case v.CanUint():
		return fmt.Sprint(v.Uint())
	case v.CanFloat():
		return fmt.Sprint(v.Float())
	case v.Kind() == reflect.Bool:
		return fmt.Sprint(v.Bool())
	}
	return "a " + v.Type().String()
}
