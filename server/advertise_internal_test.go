package server

import (
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
)

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

func TestParseAdvertiseURL(t *testing.T) {
	for value, want := range map[string]string{
		"https://karve.example":       "https://karve.example:443",
		"https://karve.example/":      "https://karve.example:443",
		"https://karve.example:6443":  "https://karve.example:6443",
		"https://192.0.2.1:6443":      "https://192.0.2.1:6443",
		"https://[2001:db8::1]":       "https://[2001:db8::1]:443",
		"https://[2001:db8::1]:6443/": "https://[2001:db8::1]:6443",
		"HTTPS://localhost:16443":     "https://localhost:16443",
	} {
		if got, err := parseAdvertiseURL(value); err != nil || got.url() != want {
			t.Errorf("%s: got %+v and error %v, want %s", value, got, err, want)
		}
	}
	for value, want := range map[string]string{
		"karve.example":                    "https://",
		"karve.example:6443":               "https://",
		"192.0.2.1:6443":                   "cannot be parsed",
		"http://karve.example":             "https://",
		"https:karve.example":              "https://",
		"https://":                         "neither a DNS name nor an address",
		"https://me:secret@karve.example":  "it has a user",
		"https://me:sec ret@karve.example": "cannot be parsed",
		"https://karve.example/clusters/a": "more than a host and a port",
		"https://karve.example?a=b":        "more than a host and a port",
		"https://karve.example?":           "more than a host and a port",
		"https://karve.example#a":          "more than a host and a port",
		"https://karve.example:":           "not a port",
		"https://karve.example:0":          "not a port",
		"https://karve.example:70000":      "not a port",
		"https://*.karve.example":          "wildcard",
		"https://0.0.0.0:6443":             "nobody can connect",
		"https://[fe80::1%25eth0]:6443":    "neither a DNS name nor an address",
	} {
		_, err := parseAdvertiseURL(value)
		if err == nil || !strings.HasPrefix(err.Error(), "--advertise-url") || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "sec") {
			t.Errorf("%s: got error %v, want one that names the option, says %q, and has no password", value, err, want)
		}
	}
}

// Nodes use the address of users, unless they have one of their own or could not reach it.
func TestAddressOfNodes(t *testing.T) {
	for _, c := range []struct{ url, endpoint, want string }{
		{"", "", ""},
		{"https://karve.example:8443", "", "karve.example:8443"},
		{"https://karve.example", "", "karve.example:443"},
		{"https://karve.example", "nodes.example:6443", "nodes.example:6443"},
		{"https://localhost:6443", "", ""},
		{"https://127.0.0.1:6443", "", ""},
		{"https://[::1]", "", ""},
	} {
		config := quietConfig(t)
		config.AdvertiseURL, config.ControlPlaneEndpoint = c.url, c.endpoint
		d := config.complete().parse()
		if len(d.problems) > 0 {
			t.Fatal(d.problems)
		}
		got := ""
		if d.endpoint != nil {
			got = d.endpoint.host + ":" + d.endpoint.port
		}
		if got != c.want {
			t.Errorf("--advertise-url %q --control-plane-endpoint %q: nodes use %q, want %q", c.url, c.endpoint, got, c.want)
		}
	}
}

// A server keeps an address while the machine has it, and otherwise until there is another.
func TestAddressOfAChangingMachine(t *testing.T) {
	const lan, lease, bridge, vpn = "192.0.2.1", "192.0.2.77", "172.17.0.1", "198.51.100.1"
	type look struct{ own, routed, want string } // the first of own's addresses is taken without a route
	for name, looks := range map[string][]look{
		"a late network":            {{"", "", ""}, {lan, "", lan}, {lan, lan, lan}},
		"a bridge is up before":     {{bridge, "", bridge}, {bridge + " " + lan, lan, lan}, {bridge + " " + lan, bridge, lan}},
		"another lease":             {{lan, lan, lan}, {lease, lease, lease}, {lease, "", lease}},
		"the network goes and back": {{lan, lan, lan}, {bridge, "", lan}, {"", "", lan}, {bridge + " " + lan, lan, lan}},
		"a network without a route": {{lan, "", lan}, {lease, "", lan}, {lease, "", lan}, {lease, "", lease}},
		"a VPN comes and goes":      {{lan, lan, lan}, {vpn + " " + lan, vpn, lan}, {lan, lan, lan}},
		"only the VPN is left":      {{lan, lan, lan}, {vpn, vpn, vpn}, {vpn + " " + lan, lan, vpn}, {lan, lan, lan}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var now look
			log := logrus.New()
			log.SetOutput(io.Discard)
			a := newAdvertised(Config{Log: log, machine: func() (own []net.IP, routed net.IP) {
				for ip := range strings.FieldsSeq(now.own) {
					own = append(own, net.ParseIP(ip))
				}
				return own, net.ParseIP(now.routed)
			}}, false)
			for i, next := range looks {
				now = next
				if got := a.IP(); !got.Equal(net.ParseIP(now.want)) {
					t.Errorf("%s, look %d: got %v, want %s", name, i+1, got, now.want)
				}
				time.Sleep(10 * time.Second)
			}
		})
	}
	for _, c := range []struct{ user, bind, want string }{{lan, "", lan}, {"", lan, lan}, {"127.0.0.1", lan, ""}, {lease, lan, lease}} {
		a := newAdvertised(Config{AdvertiseAddress: c.user, BindAddress: c.bind, machine: func() ([]net.IP, net.IP) { return nil, net.ParseIP(vpn) }}, false)
		if got := a.IP(); !got.Equal(net.ParseIP(c.want)) || (a.source() == nil) != (c.want == "") {
			t.Errorf("--advertise-address %q --bind-address %q: got %v, want %q for good", c.user, c.bind, got, c.want)
		}
	}
}
