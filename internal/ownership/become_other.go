//go:build !linux && !darwin

package ownership

import "errors"

// become is not known here, where no service is installed either.
func become(Owner) (func() error, error) { return nil, errors.ErrUnsupported }
