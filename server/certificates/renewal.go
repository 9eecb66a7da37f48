package certificates

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/internal/panics"
)

// renewCheck is the longest time between two renewals. clockCheck is how often the clock, which may
// have been set, is compared with the day on which a certificate is due.
const (
	renewCheck = time.Hour
	clockCheck = time.Minute
)

// delays returns the delays between failing attempts. Each is twice the previous one, up to limit.
func delays(first, limit time.Duration) wait.Backoff {
	return wait.Backoff{Duration: first, Factor: 2, Steps: math.MaxInt, Cap: limit}
}

// renewer renews certificates before they expire. Tests replace its fields.
type renewer struct {
	renew   func() ([]certs.Name, []certs.Note, error)
	nextDue func() time.Time
	publish func() error // writes the kubeconfigs, which carry the admin's certificate
	log     *logrus.Logger
}

// run renews certificates that are due until ctx ends. It also renews immediately when it receives
// a function from asked, which it then calls. Readers of the files notice the change themselves, so
// nothing restarts. After a failure run tries again in a second, and then with delays that double up
// to an hour. It logs each of these attempts.
func (r renewer) run(ctx context.Context, asked <-chan func()) {
	told := map[certs.Note]bool{}
	var (
		retry  wait.Backoff
		delay  time.Duration // before the next attempt; 0: nothing has failed
		failed string        // the failure that was logged
		stale  bool          // the kubeconfigs lack a renewed certificate
		last   = time.Now()  // when certificates were last renewed
	)
	for {
		next := delay
		if delay == 0 {
			retry, next = delays(time.Second, renewCheck), clockCheck
		}
		waited, answer := false, func() {}
		select {
		case <-ctx.Done():
			return
		case answer = <-asked:
		case <-time.After(next):
			due := r.nextDue()
			if delay == 0 && time.Since(last) < renewCheck && (due.IsZero() || time.Now().Before(due)) {
				continue
			}
			waited = true
		}
		last = time.Now()
		var renewed []certs.Name
		var notes []certs.Note
		err := panics.Catch(func() (err error) { renewed, notes, err = r.renew(); return err })
		logRenewal(r.log, renewed, notes, told)
		if len(renewed) > 0 {
			stale = stale || slices.Contains(renewed, certs.Admin) || slices.Contains(renewed, certs.ServerCA)
		}
		if stale {
			unpublished := panics.Catch(r.publish)
			stale = unpublished != nil
			err = errors.Join(err, unpublished)
		}
		answer()
		if err == nil {
			if delay != 0 {
				r.log.Info("certificates can be renewed again")
			}
			delay, failed = 0, ""
			continue
		}
		// A burst of requests must not use up the short delays or fill the log.
		if waited || delay == 0 {
			delay = retry.Step()
		} else if err.Error() == failed {
			continue
		}
		failed = err.Error()
		r.log.Errorf("renew certificates, next attempt in %v: %v", delay, err)
	}
}

// logRenewal logs the renewed certificates in one line, each with its reason. It logs every other
// note once; told has the notes that were logged.
func logRenewal(log *logrus.Logger, renewed []certs.Name, notes []certs.Note, told map[certs.Note]bool) {
	var others []certs.Note
	reasons := map[certs.Name]string{}
	for _, n := range notes {
		if !n.Warning && slices.Contains(renewed, n.Name) {
			reasons[n.Name] = ": " + strings.TrimPrefix(n.Text, "renewed: ")
		} else {
			others = append(others, n)
		}
	}
	if len(renewed) > 0 {
		var all []string
		for _, name := range renewed {
			all = append(all, string(name)+reasons[name])
		}
		log.Infof("renewed certificates: %s", strings.Join(all, "; "))
	}
	logNotes(log, others, told)
}

// logNotes logs each note once; told has the notes that were logged.
func logNotes(log *logrus.Logger, notes []certs.Note, told map[certs.Note]bool) {
	for _, n := range notes {
		switch {
		case told[n]:
		case n.Warning:
			log.Warnf("certificates: %s", n)
		default:
			log.Infof("certificates: %s", n)
		}
		told[n] = true
	}
}
