package server

import "testing"

func TestParseEndpoint(t *testing.T) {
	for value, want := range map[string]endpoint{
		"lb.example.org":      {"lb.example.org", ""},
		"lb.example.org:7443": {"lb.example.org", "7443"},
		"192.0.2.1":           {"192.0.2.1", ""},
		"192.0.2.1:1":         {"192.0.2.1", "1"},
		"2001:db8::1":         {"2001:db8::1", ""},
		"[2001:db8::1]":       {"2001:db8::1", ""},
		"[2001:db8::1]:6443":  {"2001:db8::1", "6443"},
	} {
		if got, err := parseEndpoint(value); err != nil || *got != want {
			t.Errorf("%s: got %+v and error %v, want %+v", value, got, err, want)
		}
	}
	for _, value := range []string{
		"https://lb.example.org", "lb.example.org:", "lb.example.org:0", "lb.example.org:70000", "lb.example.org:http", ":6443",
		"*.example.org", "0.0.0.0", "[::]:6443", "fe80::1%eth0", "two names", "[lb.example.org", "a:b:c", "[]",
	} {
		if got, err := parseEndpoint(value); err == nil {
			t.Errorf("%s: got %+v, want an error", value, got)
		}
	}
}
