// Package watches holds client-go's informers of every type at a karve server that compacts
// often, while only ConfigMaps change, and fails if one of them has to list again.
package watches

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/karve-k8s/karve/test/durability/soak/setup"
)

type options struct {
	setup.Options
	renew time.Duration
	rate  float64
}

func parse(args []string, stderr io.Writer) (options, error) {
	o := options{Options: setup.Options{Length: 30 * time.Minute, Compact: time.Minute}}
	flags := o.Flags("soak watches", stderr)
	flags.DurationVar(&o.renew, "renew", 90*time.Second, "how long a watch lasts until its client renews it; 0 is client-go's five to ten minutes")
	flags.Float64Var(&o.rate, "rate", 20, "writes a second, all of ConfigMaps")
	if err := o.Parse(flags, args); err != nil {
		return o, err
	}
	switch {
	case o.rate <= 0 || o.renew < 0:
		return o, errors.New("-rate has to be more than 0, and -renew not less")
	case o.Length < 3*o.Compact:
		return o, fmt.Errorf("-for %v: want at least three times -compact, which is %v, because the API server compacts to where it was one interval ago", o.Length, o.Compact)
	}
	return o, nil
}
