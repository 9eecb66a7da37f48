package output

import (
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
)

func TestStartProgressInTheLog(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	log := logrus.New()
	log.SetOutput(&text)
	log.SetFormatter(&logrus.TextFormatter{DisableColors: true, DisableTimestamp: true})
	now := time.Unix(0, 0)
	p := &StartProgress{log: log, now: func() time.Time { return now }}
	for range 10 { // the server tells it every five seconds
		now = now.Add(5 * time.Second)
		p.Tell("datastore", time.Duration(now.Unix())*time.Second, "reading the database: 40%")
	}
	p.Done()
	now = now.Add(time.Hour)
	p.Tell("datastore", 0, "")
	want := `level=info msg="the datastore has been starting for 5s (reading the database: 40%)"` + "\n" +
		`level=info msg="the datastore has been starting for 35s (reading the database: 40%)"` + "\n"
	if got := text.String(); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}
