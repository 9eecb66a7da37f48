package certs

import (
	"fmt"
	"math"
	"os"
	"time"
)

// Info describes the files of one Name.
type Info struct {
	Name Name `json:"name"`
	Kind Kind `json:"kind"`
	// Subject and Issuer are in RFC 2253 form; empty for KindKey.
	Subject string `json:"subject"`
	Issuer  string `json:"issuer"`
	// SANs are DNS names, then IP addresses.
	SANs []string `json:"sans"`
	// NotAfter is the end of validity. From Due on, Karve renews the certificate, or urges
	// the user to renew theirs.
	NotAfter time.Time `json:"notAfter"`
	Due      time.Time `json:"due"`
	// DaysLeft is the number of whole days until NotAfter, negative after it.
	DaysLeft int `json:"daysLeft"`
	// KeyType is, for example, "ECDSA P-256" or "RSA 2048".
	KeyType string `json:"keyType"`
	// UserSupplied says that this package did not make the certificate. It is false for
	// KindKey, because keys do not say where they come from.
	UserSupplied bool `json:"userSupplied"`
	// CertFile and KeyFile are the paths, or empty if there is no such file.
	CertFile string `json:"certFile"`
	KeyFile  string `json:"keyFile"`
	// Problem says why the files cannot be used, or is empty.
	Problem string `json:"problem"`
}

// List describes every Name, in the order of Names, from the files in dir; the names of
// etcd only if there are any. It writes nothing. Info.Problem reports a file that is
// missing or cannot be read. The error is about dir itself.
func List(dir string, now time.Time) ([]Info, error) {
	if _, err := os.ReadDir(dir); err != nil {
		return nil, fmt.Errorf("list certificates: %w", err)
	}
	infos := make([]Info, 0, len(table))
	for _, e := range table {
		if !e.wanted(dir, false) {
			continue
		}
		infos = append(infos, describe(dir, e, now))
	}
	return infos, nil
}

// End returns when the first certificate in a file expires.
func End(file string) (time.Time, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return time.Time{}, err
	}
	all, err := parseCerts(file, data)
	if err != nil {
		return time.Time{}, err
	}
	return all[0].NotAfter, nil
}

func describe(dir string, e entry, now time.Time) Info {
	info := Info{Name: e.name, Kind: e.kind}
	if _, err := os.Lstat(certFile(dir, e.name)); err == nil && e.kind != KindKey {
		info.CertFile = certFile(dir, e.name)
	}
	if _, err := os.Lstat(keyFile(dir, e.name)); err == nil {
		info.KeyFile = keyFile(dir, e.name)
	}
	p, err := loadPair(dir, e)
	if err != nil {
		info.Problem = err.Error()
		return info
	}
	if p.key != nil {
		info.KeyType = keyType(p.key.Public())
	}
	switch {
	case p.main == nil && e.kind != KindKey:
		info.Problem = p.certFile + " is missing"
	case p.key == nil:
		info.Problem = p.keyFile + " is missing"
	case e.kind != KindKey && !p.matches():
		info.Problem = fmt.Sprintf("%s is not the key of %s", p.keyFile, p.certFile)
	}
	if p.main == nil {
		return info
	}
	info.of(p, now)
	return info
}

// of describes the certificate of p.
func (info *Info) of(p *pair, now time.Time) {
	info.Subject, info.Issuer = p.main.Subject.String(), p.main.Issuer.String()
	info.SANs = certSANs(p.main).Strings()
	info.NotAfter, info.Due = p.main.NotAfter, p.due()
	info.DaysLeft = int(math.Floor(p.main.NotAfter.Sub(now).Hours() / 24))
	info.KeyType = keyType(p.main.PublicKey)
	info.UserSupplied = !p.ours
}
