package certs

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
)

func TestParseSAN(t *testing.T) {
	for _, c := range []struct{ in, name, ip, err string }{
		{"10.0.0.1", "", "10.0.0.1", ""},
		{"fd00::1", "", "fd00::1", ""},
		{"::ffff:10.0.0.1", "", "10.0.0.1", ""},
		{"API.Example.com.", "api.example.com", "", ""},
		{"*.example.com", "*.example.com", "", ""},
		{"xn--bcher-kva.example", "xn--bcher-kva.example", "", ""},
		{"my_host", "my_host", "", ""},
		{"", "", "", "empty"},
		{"fe80::1%eth0", "", "", "%eth0"},
		{"10.0.0.300", "", "", "malformed IP"},
		{"10.0.0.0/24", "", "", "RFC 1123"},
		{"host:6443", "", "", "RFC 1123"},
		{"https://host", "", "", "RFC 1123"},
		{"bücher.example", "", "", "RFC 1123"},
		{"-a.example", "", "", "RFC 1123"},
		{"a..b", "", "", "RFC 1123"},
		{strings.Repeat("a.", 127) + "aa", "", "", "253"},
		{"*", "", "", "RFC 1123"},
		{"two words", "", "", "RFC 1123"},
	} {
		name, ip, err := ParseSAN(c.in)
		got := ""
		if ip != nil {
			got = ip.String()
		}
		if name != c.name || got != c.ip || (err != nil) != (c.err != "") {
			t.Errorf("ParseSAN(%q) = %q, %q, %v; want %q, %q, %q", c.in, name, got, err, c.name, c.ip, c.err)
		}
		if err != nil && (!strings.Contains(err.Error(), c.err) || !strings.Contains(err.Error(), `"`+c.in[:min(len(c.in), 5)])) {
			t.Errorf("ParseSAN(%q): error %q does not say %q and the value", c.in, err, c.err)
		}
	}
}

func TestSANs(t *testing.T) {
	std := []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"}
	for _, c := range []struct {
		name string
		cfg  Config
		nets []string
		want []string
		err  string
	}{
		{"nothing known", Config{Hostname: "not a name!"}, nil, append(slices.Clone(std), "127.0.0.1", "::1"), ""},
		{"host name", Config{Hostname: "Board.LAN"}, nil, append([]string{"board.lan"}, append(slices.Clone(std), "127.0.0.1", "::1")...), ""},
		{"interfaces", Config{Hostname: "!"},
			[]string{"127.0.0.1/8", "192.168.1.5/24", "169.254.3.4/16", "fe80::1/64", "fd00::5/64", "224.0.0.1/4", "ff02::1/16", "0.0.0.0/0", "192.168.1.5/24"},
			append(slices.Clone(std), "127.0.0.1", "169.254.3.4", "192.168.1.5", "::1", "fd00::5"), ""},
		{"given", Config{Hostname: "!", ClusterDomain: "k8s.example.", ServiceIPs: []net.IP{net.ParseIP("10.43.0.1"), net.ParseIP("fd43::1")}, ExtraSANs: []string{"1.2.3.4", "x.example", "X.example"}}, nil,
			append(slices.Clone(std[:3]), "kubernetes.default.svc.k8s.example", "localhost", "x.example", "1.2.3.4", "10.43.0.1", "127.0.0.1", "::1", "fd43::1"), ""},
		{"several wrong", Config{ExtraSANs: []string{"a b", "https://x"}, ClusterDomain: "b/c", ServiceIPs: []net.IP{{1}}}, nil, nil, `"a b"|"https://x"|"b/c"|service IP`},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.cfg.InterfaceAddrs = func() ([]net.Addr, error) {
				var out []net.Addr
				for _, s := range c.nets {
					ip, n, err := net.ParseCIDR(s)
					fatal(t, err)
					out = append(out, &net.IPNet{IP: ip, Mask: n.Mask})
				}
				return out, nil
			}
			got, err := c.cfg.SANs()
			if c.err != "" {
				for _, part := range strings.Split(c.err, "|") {
					if err == nil || !strings.Contains(err.Error(), part) {
						t.Errorf("error %v, want %s", err, part)
					}
				}
				return
			}
			if err != nil || !slices.Equal(got.Strings(), c.want) {
				t.Errorf("got %v, %v\nwant %v", got.Strings(), err, c.want)
			}
		})
	}
}

func TestEnsureInvalidConfig(t *testing.T) {
	b := newTestbed(t)
	b.ExtraSANs = []string{"a b"}
	if _, _, err := Ensure(b.Config); err == nil || !strings.Contains(err.Error(), `"a b"`) {
		t.Errorf("error %v", err)
	}
	if got := b.files(t); len(got) != 0 {
		t.Errorf("files %v", got)
	}
	b.ExtraSANs = nil
	b.InterfaceAddrs = func() ([]net.Addr, error) { return nil, errors.New("sealed") }
	if _, notes := b.ensure(t); !strings.Contains(texts(notes), "sealed") {
		t.Errorf("notes %q", texts(notes))
	}
	b.verify(t, b.now)
}
