package external

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/k3s-io/kine/pkg/drivers"
	kinenats "github.com/k3s-io/kine/pkg/drivers/nats"
	"github.com/k3s-io/kine/pkg/server"
	"github.com/k3s-io/kine/pkg/tls"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

var natsKV = driver{
	form:    "nats://USER:PASSWORD@HOST:PORT,…?bucket=NAME&replicas=N",
	tools:   "nats stream backup, restore and info (of the stream KV_BUCKET)",
	parse:   parseNATS,
	prepare: prepareNATS,
	open:    openNATS,

	patience: 5 * time.Second,
}

// natsParameters are the parameters of kine's driver that need no embedded server.
var natsParameters = map[string]bool{
	"bucket": true, "replicas": true, "slowMethod": true, "revHistory": true, "credsFile": true, "contextFile": true,
}

func parseNATS(rest string) (where string, secrets []string, err error) {
	var hosts []string
	for i, one := range strings.Split("nats://"+rest, ",") {
		if AtAfterHost(strings.TrimPrefix(one, "nats://")) {
			return "", secrets, errAt
		}
		u, err := url.Parse(one)
		if err != nil {
			return "", secrets, errors.New("not a URL")
		}
		if u.User != nil {
			secrets = append(secrets, userSecrets(u)...)
			if _, ok := u.User.Password(); !ok {
				secrets = append(secrets, u.User.Username()) // a token
			}
		}
		if u.Scheme != "nats" {
			return "", secrets, errors.New("each URL of several begins with nats://")
		}
		if i > 0 && (u.User != nil || u.RawQuery != "") {
			return "", secrets, errors.New("user and parameters belong to the first URL")
		}
		// kine takes them as they are written (kine pkg/drivers/nats/config.go).
		if password, _ := u.User.Password(); u.User != nil && u.User.String() != u.User.Username() && !strings.HasSuffix(u.User.String(), ":"+password) {
			return "", secrets, errors.New("a password with special characters has to be in a credsFile or a contextFile")
		}
		for name := range u.Query() {
			if !natsParameters[name] {
				return "", secrets, fmt.Errorf("there is no parameter %s", name)
			}
		}
		hosts = append(hosts, u.Host)
	}
	return "nats://" + strings.Join(hosts, ",nats://"), secrets, nil
}

// prepareNATS does nothing: the driver connects once.
func prepareNATS(_ context.Context, rest string, files tls.Config) (drivers.Config, func(), error) {
	return drivers.Config{Endpoint: "nats://" + rest, BackendTLSConfig: files}, func() {}, nil
}

func openNATS(ctx context.Context, work *sync.WaitGroup, config *drivers.Config) (bool, server.Backend, error) {
	leads, backend, err := kinenats.New(ctx, work, config)
	for _, final := range []error{nats.ErrAuthorization, nats.ErrAuthExpired, jetstream.ErrJetStreamNotEnabled, jetstream.ErrJetStreamNotEnabledForAccount} {
		if errors.Is(err, final) {
			err = refusal{err}
		}
	}
	if untrusted(err) {
		err = refusal{err}
	}
	return leads, backend, err
}
