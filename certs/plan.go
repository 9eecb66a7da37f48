package certs

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/internal/destination"
)

// plan goes through the table once and works out, in memory, what has to be written.
// Nothing is written before all of it is known to be possible.
type plan struct {
	cfg      Config
	now      time.Time
	starting bool          // missing authorities are made
	force    map[Name]bool // what to renew in any case; true: or fail

	sans SANs
	cas  map[Name]*pair // those that can be used

	keys, certs []atomicfile.File
	renewed     []Name
	notes       []Note
	nextDue     time.Time
	signers     map[Name]string // see Store.SignerFile
}

func (s *Store) plan(force map[Name]bool) *plan {
	return &plan{cfg: s.cfg, now: s.cfg.Now(), force: force, cas: map[Name]*pair{}, signers: map[Name]string{}}
}

// run makes the plan for the table, and returns every problem.
func (p *plan) run() error {
	sans, err := p.cfg.SANs()
	if hidden := (*interfaceError)(nil); errors.As(err, &hidden) {
		p.note("", true, "%v: the serving certificate is not renewed for new addresses of this machine", hidden)
		err = nil
	}
	if err != nil {
		return err // without the names, nothing can be decided
	}
	p.sans = sans
	return p.rows(table[:])
}

// rows makes the plan for some rows; p.sans is known.
func (p *plan) rows(rows []entry) error {
	var errs []error
	for _, e := range rows {
		if !e.wanted(p.cfg.Dir, p.cfg.Etcd) {
			continue
		}
		c, err := loadPair(p.cfg.Dir, e)
		if err == nil {
			p.warnReadable(c)
			switch e.kind {
			case KindCA:
				if err = p.authority(c); err == nil {
					p.cas[e.name] = c
				}
			case KindKey:
				err = p.signingKey(c)
			case KindLeaf:
				err = p.leaf(c)
			}
		}
		errs = append(errs, err)
	}
	p.checkClock()
	return errors.Join(errs...)
}

func (p *plan) note(n Name, warning bool, format string, args ...any) {
	p.notes = append(p.notes, Note{Name: n, Warning: warning, Text: fmt.Sprintf(format, args...)})
}

func (p *plan) warnReadable(c *pair) {
	if c.key != nil && c.keyMode&0o004 != 0 {
		p.note(c.name, true, "every user of this machine can read %s: chmod 600 it", c.keyFile)
	}
}

// checkClock reports a clock that must be wrong.
func (p *plan) checkClock() {
	var latest time.Time
	for _, ca := range p.cas {
		if t, ok := caCreated(ca.main.Subject.CommonName); ca.ours && ok && t.After(latest) {
			latest = t
		}
	}
	switch {
	case p.now.Before(latest):
		p.note("", true, "the clock is earlier than the creation of the certificate authorities on %s: set it; until then, no certificate is found due for renewal", date(latest))
	case p.now.Before(reference):
		p.note("", true, "the clock is earlier than this program (%s): set it; certificates are made as of that day", date(reference))
	}
}

// authority plans for a CA.
func (p *plan) authority(c *pair) error {
	forced := p.force[c.name]
	due := c.main != nil && !p.now.Before(c.due())
	switch {
	case c.main == nil && !p.starting:
		return fmt.Errorf("%w: %s: put it back; or restart the server: --cluster-token-file brings it back if the datastore has it, and otherwise the start says how the cluster can get a new authority (--new-authorities)", ErrGone, c.certFile)
	case c.main == nil:
		if c.key != nil {
			p.note(c.name, false, "%s had no certificate: made one for it", c.keyFile)
		}
		return p.makeCA(c, nil)
	case forced && !c.ours:
		return fmt.Errorf("%w: %s: replace it yourself", ErrUserSupplied, c.certFile)
	case forced && c.key == nil:
		return fmt.Errorf("%w: %s is needed to renew %s", ErrKeyMissing, c.keyFile, c.certFile)
	case c.ours && c.key != nil && (forced || due):
		p.note(c.name, false, "renewed with the same name and key: what it signed stays valid; clients that have a copy of the former certificate can use it until %s", date(c.main.NotAfter))
		return p.makeCA(c, c.main)
	case c.ours && c.key == nil:
		p.note(c.name, true, "%s is missing: neither %s nor what it has signed can be renewed, and nothing new is signed: put it back from a backup (karve backup) or another server, or replace the authority (karve certs rotate-ca)", c.keyFile, c.certFile)
	case due:
		p.note(c.name, true, "%s: put a certificate with the same name and key in place of %s", expiry(c, p.now), c.certFile)
	case p.now.Before(c.main.NotBefore):
		p.note(c.name, true, "%s is not valid before %s, and by the clock it is earlier: check the clock", c.certFile, date(c.main.NotBefore))
	}
	p.watch(c)
	return p.exportSigner(c)
}

// makeCA issues c again, or for the first time if old is nil. What a user put beside it stays, such as an
// authority that clients still have to trust.
func (p *plan) makeCA(c *pair, old *x509.Certificate) error {
	if err := p.ensureKey(c); err != nil {
		return err
	}
	cert, err := issueCA(c.entry, c.key, old, p.now)
	if err != nil {
		return fmt.Errorf("make %s: %w", c.certFile, err)
	}
	others := slices.DeleteFunc(slices.Clone(c.certs), func(o *x509.Certificate) bool { return o == old })
	if err := p.putCert(c, cert, others...); err != nil {
		return err
	}
	return p.exportSigner(c)
}

// signingKey plans for the service account key.
func (p *plan) signingKey(c *pair) error {
	if c.key == nil {
		if !p.starting {
			return fmt.Errorf("%w: %s: put it back; or restart the server: --cluster-token-file brings it back if the datastore has it, and otherwise the start says how the cluster can get a new key (--new-authorities)", ErrGone, c.keyFile)
		}
		return p.ensureKey(c)
	}
	if _, ok := c.key.Public().(ed25519.PublicKey); ok {
		return fmt.Errorf("%w: %s is an Ed25519 key, which cannot sign service account tokens: use RSA or ECDSA", ErrCorrupt, c.keyFile)
	}
	return nil
}

// leaf plans for a certificate that a CA signs.
func (p *plan) leaf(c *pair) error {
	ca := p.cas[c.signer]
	switch {
	case ca == nil:
		return nil // reported already
	case c.main != nil && !c.ours:
		return p.usersLeaf(c, ca)
	}
	named, listed := p.force[c.name]
	why := p.whyRenew(c, ca, listed)
	if why == "" {
		p.watchLeaf(c, ca)
		return nil
	}
	if err := p.cannotSign(c, ca); err != nil {
		intact := c.matches() && signedBy(c.main, ca.main)
		if named || !intact || errors.Is(err, ErrKeyMissing) && p.now.After(c.main.NotAfter) {
			return err
		}
		p.note(c.name, true, "should be renewed (%s) and cannot be: %v", why, err)
		return nil
	}
	if c.main != nil {
		p.note(c.name, false, "renewed: %s", why)
	}
	if err := p.ensureKey(c); err != nil {
		return err
	}
	cert, err := issueLeaf(c.entry, c.key.Public(), p.sans, ca, p.now)
	if err != nil {
		return fmt.Errorf("make %s: %w", c.certFile, err)
	}
	if err := p.putCert(c, cert, ca.chain()...); err != nil {
		return err
	}
	if !ca.ours {
		p.warnRejected(c, ca)
	}
	p.watchLeaf(c, ca)
	return nil
}

// whyRenew says why the leaf has to be renewed now, or "".
func (p *plan) whyRenew(c, ca *pair, forced bool) string {
	if c.main == nil {
		return "it is missing"
	}
	if c.key == nil {
		return "its key is missing"
	}
	if why := stale(c, ca, p.sans); why != "" {
		return why
	}
	switch {
	case forced:
		return "asked for"
	// A leaf that ends with its CA would get no more time.
	case !p.now.Before(c.due()) && leafEnd(c.entry, ca, p.now).After(c.main.NotAfter):
		return "it " + expiry(c, p.now)
	}
	return ""
}

// cannotSign says why ca cannot sign c now.
func (p *plan) cannotSign(c, ca *pair) error {
	switch {
	case p.now.After(ca.main.NotAfter) && !(ca.ours && ca.key != nil):
		return fmt.Errorf("%w: %s expired on %s and cannot sign %s: replace it by a valid one, or check the clock", ErrCAExpired, ca.certFile, date(ca.main.NotAfter), c.certFile)
	case ca.key == nil:
		return fmt.Errorf("%w: %s is needed to sign %s: put it there, or supply %s and %s yourself", ErrKeyMissing, ca.keyFile, c.certFile, c.certFile, c.keyFile)
	}
	return nil
}

// usersLeaf reports on a leaf that a user put there.
func (p *plan) usersLeaf(c, ca *pair) error {
	named, listed := p.force[c.name]
	switch {
	case c.key == nil:
		return fmt.Errorf("%w: %s, for %s: put it there, or remove the certificate to have one made", ErrKeyMissing, c.keyFile, c.certFile)
	case !c.matches():
		return fmt.Errorf("%w: %s is not the key of %s: put the right one there, or remove both to have them made", ErrMismatch, c.keyFile, c.certFile)
	case named:
		return fmt.Errorf("%w: %s: replace it yourself, or remove it and its key to have them made", ErrUserSupplied, c.certFile)
	case listed:
		p.note(c.name, false, "%s was not made by karve: left as it is", c.certFile)
	}
	switch {
	case !p.now.Before(c.due()):
		p.note(c.name, true, "%s; %s was not made by karve: replace it yourself", expiry(c, p.now), c.certFile)
	case p.now.Before(c.main.NotBefore):
		p.note(c.name, true, "%s is not valid before %s, and by the clock it is earlier: check the clock", c.certFile, date(c.main.NotBefore))
	}
	if c.withSAN {
		if lack := lacking(certSANs(c.main), p.sans); len(lack) > 0 {
			p.note(c.name, true, "%s was not made by karve, and is not valid for %s", c.certFile, strings.Join(lack, ", "))
		}
	}
	p.warnRejected(c, ca)
	return nil
}

// warnRejected reports a leaf that clients of ca do not accept: another CA signed it, or a
// user's CA limits what it may sign. Expiry is reported elsewhere.
func (p *plan) warnRejected(c, ca *pair) {
	opts := x509.VerifyOptions{
		Roots:         x509.NewCertPool(),
		Intermediates: x509.NewCertPool(),
		KeyUsages:     c.usage,
		CurrentTime:   p.now,
	}
	for _, a := range ca.certs {
		opts.Roots.AddCert(a)
	}
	for _, i := range c.certs[1:] {
		opts.Intermediates.AddCert(i)
	}
	_, err := c.main.Verify(opts)
	if invalid := (x509.CertificateInvalidError{}); err == nil || errors.As(err, &invalid) && invalid.Reason == x509.Expired {
		return
	}
	p.note(c.name, true, "clients that trust %s do not accept %s: %v", ca.certFile, c.certFile, err)
}

// expiry says in words when c ends.
func expiry(c *pair, now time.Time) string {
	if now.After(c.main.NotAfter) {
		return "expired on " + date(c.main.NotAfter)
	}
	return "expires on " + date(c.main.NotAfter)
}

// watch tells NextDue of c, if Karve renews it.
func (p *plan) watch(c *pair) {
	if !c.ours || c.key == nil {
		return
	}
	if due := c.due(); p.nextDue.IsZero() || due.Before(p.nextDue) {
		p.nextDue = due
	}
}

func (p *plan) watchLeaf(c, ca *pair) {
	if p.cannotSign(c, ca) == nil && c.main.NotAfter.Before(ca.main.NotAfter) {
		p.watch(c)
	}
}

// ensureKey makes a key if there is none. It never replaces a key: it may be a user's, and
// a certificate alone is renewed in one step.
func (p *plan) ensureKey(c *pair) error {
	if c.key != nil {
		return nil
	}
	key, data, err := newKey()
	if err != nil {
		return err
	}
	c.key, c.keyPEM = key, data
	return p.put(&p.keys, c.keyFile, data)
}

// putCert plans that c holds cert, followed by chain.
func (p *plan) putCert(c *pair, cert *x509.Certificate, chain ...*x509.Certificate) error {
	c.certs = append([]*x509.Certificate{cert}, chain...)
	c.use(cert)
	p.renewed = append(p.renewed, c.name)
	if c.kind == KindCA {
		p.watch(c)
	}
	return p.put(&p.certs, c.certFile, encodeCerts(c.certs))
}

func (p *plan) put(list *[]atomicfile.File, path string, data []byte) error {
	to, err := destination.Follow(path)
	*list = append(*list, atomicfile.File{Path: to, Data: data, Mode: fileMode})
	return err
}

// exportSigner plans for Store.SignerFile. Upstream's signer
// (pkg/controller/certificates/signer) refuses a file with several certificates.
func (p *plan) exportSigner(c *pair) error {
	if c.name != ServerCA && c.name != ClientCA || c.key == nil {
		return nil
	}
	p.signers[c.name] = c.certFile
	if len(c.certs) == 1 {
		return nil
	}
	signer := certFile(p.cfg.Dir, c.name+"-signer")
	p.signers[c.name] = signer
	want := encodeCerts([]*x509.Certificate{c.main})
	if have, _, err := readFile(signer); err == nil && bytes.Equal(have, want) {
		return nil // it is derived, so an unreadable one is replaced
	}
	return p.put(&p.certs, signer, want)
}
