package certs

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/karve-k8s/karve/internal/atomicfile"
)

// KindUser is the Kind of an Info that describes a certificate of IssueUser.
const KindUser Kind = "user"

// usersDir is the directory of the certificates of IssueUser, in that of the others.
const usersDir = "users"

// A User gets a client certificate. The API server takes Name and Groups from it.
type User struct {
	Name   string
	Groups []string
	// Life is how long the certificate is valid, at most as long as ClientCA.
	Life time.Duration
}

// Validate returns an error that names the field, as an option of the command line.
func (u User) Validate() error {
	var errs []error
	if u.Name == "" || strings.TrimSpace(u.Name) != u.Name || len(u.Name) > 64 { // the length that X.509 allows
		errs = append(errs, fmt.Errorf("--user %q: want a name of 1 to 64 characters without spaces around it", u.Name))
	}
	if strings.HasPrefix(u.Name, "system:") {
		errs = append(errs, fmt.Errorf("--user %q: names that begin with system: belong to the cluster's own components", u.Name))
	}
	for _, g := range u.Groups {
		if g == "" || strings.TrimSpace(g) != g || len(g) > 64 {
			errs = append(errs, fmt.Errorf("--group %q: want a name of 1 to 64 characters without spaces around it", g))
		} else if strings.Contains(g, ",") { // it would be one group, which no RBAC names
			errs = append(errs, fmt.Errorf("--group %q: repeat --group for several groups: a name has no comma", g))
		}
	}
	if u.Life < time.Minute {
		errs = append(errs, fmt.Errorf("--ttl %v: want one minute or more", u.Life))
	}
	return errors.Join(errs...)
}

// Issued is what a user authenticates with.
type Issued struct {
	User     string
	NotAfter time.Time
	// CertPEM and KeyPEM are the certificate, with those between it and the authority, and its key.
	CertPEM, KeyPEM []byte
}

// IssueUser makes a key and a certificate for u, signed by the ClientCA in dir. It keeps the certificate, without
// the key, so that Users lists it, and removes those of users that have expired. A certificate cannot be
// revoked: it is valid until it expires, or until ClientCA is replaced.
func IssueUser(dir string, u User, now time.Time) (Issued, error) {
	if err := u.Validate(); err != nil {
		return Issued{}, err
	}
	row, _ := lookup(ClientCA)
	ca, err := loadPair(dir, row)
	if err != nil {
		return Issued{}, err
	}
	if ca.main == nil || ca.key == nil {
		return Issued{}, fmt.Errorf("%s and %s are needed to sign a user's certificate: issue it where the key of your authority is", ca.certFile, ca.keyFile)
	}
	key, keyPEM, err := newKey()
	if err != nil {
		return Issued{}, err
	}
	e := entry{kind: KindLeaf, signer: ClientCA, cn: u.Name, orgs: u.Groups, usage: forClients, life: u.Life}
	cert, err := issueLeaf(e, key.Public(), SANs{}, ca, now)
	if err != nil {
		return Issued{}, fmt.Errorf("sign a certificate for %s: %w", u.Name, err)
	}
	issued := Issued{User: u.Name, NotAfter: cert.NotAfter, CertPEM: encodeCerts(append([]*x509.Certificate{cert}, ca.chain()...)), KeyPEM: keyPEM}
	known, err := Users(dir, now)
	if err != nil {
		return Issued{}, err
	}
	for _, old := range known {
		if old.Problem == "" && now.After(old.NotAfter) {
			if err := os.Remove(old.CertFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return Issued{}, err
			}
		}
	}
	users := filepath.Join(dir, usersDir)
	if err := makeDir(atomicfile.Writer{}, users); err != nil {
		return Issued{}, err
	}
	file := filepath.Join(users, fmt.Sprintf("%s.%x.crt", url.PathEscape(u.Name), cert.SerialNumber))
	return issued, atomicfile.Write(file, encodeCerts([]*x509.Certificate{cert}), fileMode)
}

// Users describes the certificates that IssueUser made in dir, those that expire first before the others.
func Users(dir string, now time.Time) ([]Info, error) {
	files, err := filepath.Glob(filepath.Join(dir, usersDir, "*.crt"))
	if err != nil {
		return nil, err
	}
	var infos []Info
	for _, file := range files {
		escaped, _, _ := strings.Cut(filepath.Base(file), ".")
		info := Info{Name: Name("user/" + escaped), Kind: KindUser, CertFile: file}
		p := &pair{certFile: file}
		data, _, err := readFile(file)
		if err == nil {
			err = p.parse(data, nil)
		}
		switch {
		case err != nil:
			info.Problem = err.Error()
		case p.main == nil:
			info.Problem = file + " has no certificate"
		default:
			info.Name = Name("user/" + p.main.Subject.CommonName)
			info.of(p, now)
		}
		infos = append(infos, info)
	}
	slices.SortStableFunc(infos, func(a, b Info) int { return a.NotAfter.Compare(b.NotAfter) })
	return infos, nil
}

// Kubeconfig returns the kubeconfig text, which WriteKubeconfig made for the administrator, for this user. Its contexts
// are called like the administrator's, with the user's name after it.
func (i Issued) Kubeconfig(text []byte) ([]byte, error) {
	admin, err := clientcmd.Load(text)
	if err != nil {
		return nil, errors.New("the administrator's kubeconfig cannot be read") // the parser may quote it
	}
	config := clientcmdapi.NewConfig()
	config.Clusters = admin.Clusters
	config.AuthInfos[i.User] = i.authInfo()
	for name, context := range admin.Contexts {
		config.Contexts[name+"-"+i.User] = &clientcmdapi.Context{Cluster: context.Cluster, AuthInfo: i.User}
	}
	config.CurrentContext = admin.CurrentContext + "-" + i.User
	return clientcmd.Write(*config)
}

func (i Issued) authInfo() *clientcmdapi.AuthInfo {
	return &clientcmdapi.AuthInfo{ClientCertificateData: i.CertPEM, ClientKeyData: i.KeyPEM}
}
