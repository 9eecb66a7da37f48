//go:build !linux && !darwin

package ownership

import "errors"

// become fails: this system is not supported, and no service is installed on it either.
func become(Owner) (func() error, error) { return nil, errors.ErrUnsupported }
