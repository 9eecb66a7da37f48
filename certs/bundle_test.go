package certs

import (
	"crypto/x509"
	"slices"
	"testing"
)

// With the bundle alone, a node verifies the API server, and a kubelet verifies the API server
// as its client. Authorities that only sign users are not in it.
func TestNodeBundle(t *testing.T) {
	end := today.AddDate(20, 0, 0)
	server, client, company := newUserCA(t, "server", ecKey(t), nil, end), newUserCA(t, "client", ecKey(t), nil, end), newUserCA(t, "company", ecKey(t), nil, end)
	middle := newUserCA(t, "middle", ecKey(t), &company, end)
	for _, tc := range []struct {
		name            string
		server, clients []userCA // the first one signs; none are Karve's own
		want            []userCA // in this order
	}{
		{"Karve's", nil, nil, nil},
		{"a user's", []userCA{server}, []userCA{client}, []userCA{server, client}},
		{"one for both", []userCA{server}, []userCA{server}, []userCA{server}},
		{"a company's root among those for clients", []userCA{server}, []userCA{client, company}, []userCA{server, client}},
		{"an intermediate", []userCA{server}, []userCA{middle, company}, []userCA{server, middle}},
		{"the issuer of a serving certificate", []userCA{server, company}, []userCA{client}, []userCA{server, company, client}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newTestbed(t)
			for name, authorities := range map[string][]userCA{"server-ca": tc.server, "client-ca": tc.clients} {
				if len(authorities) > 0 {
					b.put(t, name+".crt", encodeCerts(certsOf(authorities...)))
					b.put(t, name+".key", keyPEM(t, authorities[0].key, "PRIVATE KEY"))
				}
			}
			s, _ := b.ensure(t)
			data, err := s.NodeBundle()
			fatal(t, err)
			got, err := parseCerts("the bundle", data)
			fatal(t, err)
			want := certsOf(tc.want...)
			if len(want) == 0 {
				want = []*x509.Certificate{b.cert(t, ServerCA), b.cert(t, ClientCA)}
			}
			if !slices.EqualFunc(got, want, (*x509.Certificate).Equal) {
				t.Errorf("got %v, want %v", subjects(got), subjects(want))
			}
			roots := x509.NewCertPool()
			for _, c := range got {
				roots.AddCert(c)
			}
			for leaf, usage := range map[Name]x509.ExtKeyUsage{Serving: x509.ExtKeyUsageServerAuth, KubeletClient: x509.ExtKeyUsageClientAuth} {
				if _, err := b.cert(t, leaf).Verify(x509.VerifyOptions{Roots: roots, CurrentTime: today, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
					t.Errorf("%s: %v", leaf, err)
				}
			}
			// Each serves one direction only.
			if _, err := b.cert(t, Serving).Verify(x509.VerifyOptions{Roots: roots, CurrentTime: today, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err == nil {
				t.Error("a kubelet would accept the serving certificate as a client's")
			}
			if _, err := b.cert(t, Admin).Verify(x509.VerifyOptions{Roots: roots, CurrentTime: today, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err == nil {
				t.Error("a node would accept a user's certificate as the API server's")
			}
		})
	}
}

func subjects(all []*x509.Certificate) []string {
	var names []string
	for _, c := range all {
		names = append(names, c.Subject.CommonName)
	}
	return names
}

// A certificate that an intermediate signed, which is not in the file of authorities: only the
// intermediate's issuer is in the bundle. Without the intermediate, or with another one, no authority
// for clients is.
func TestNodeBundleOfAnIntermediate(t *testing.T) {
	end := today.AddDate(20, 0, 0)
	root, company := newUserCA(t, "root", ecKey(t), nil, end), newUserCA(t, "company", ecKey(t), nil, end)
	upper := newUserCA(t, "upper", ecKey(t), &root, end)
	lower, other := newUserCA(t, "lower", ecKey(t), &upper, end), newUserCA(t, "other", ecKey(t), &root, end)
	for name, tc := range map[string]struct {
		between []userCA
		want    []string
	}{
		"all of them":        {[]userCA{upper, lower}, []string{"root"}},
		"one is missing":     {[]userCA{lower}, nil},
		"another one's":      {[]userCA{other}, nil},
		"none":               {nil, nil},
		"one more, and root": {[]userCA{lower, other, upper, root}, []string{"root"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestbed(t)
			s, _ := b.ensure(t)
			key := ecKey(t)
			leaf := lower.leaf(t, "kube-apiserver-kubelet-client", key.Public(), x509.ExtKeyUsageClientAuth, end)
			b.put(t, "kubelet-client.crt", encodeCerts(append([]*x509.Certificate{leaf}, certsOf(tc.between...)...)))
			b.put(t, "client-ca.crt", encodeCerts(certsOf(company, root)))
			data, err := s.NodeBundle()
			fatal(t, err)
			got, err := parseCerts("the bundle", data)
			fatal(t, err)
			if !got[0].Equal(b.cert(t, ServerCA)) || !slices.Equal(subjects(got[1:]), tc.want) {
				t.Errorf("got %v, want server-ca and %v", subjects(got), tc.want)
			}
		})
	}
}
