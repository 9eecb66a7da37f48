package ownership

import (
	"errors"
	"syscall"
)

// become is as on Linux; the kernel keeps one identity for all threads.
func become(o Owner) (back func() error, err error) {
	groups, err := syscall.Getgroups()
	if err != nil {
		return nil, err
	}
	group := syscall.Getegid()
	back = func() error {
		return errors.Join(syscall.Seteuid(0), syscall.Setegid(group), syscall.Setgroups(groups))
	}
	err = syscall.Setgroups([]int{o.GID})
	if err == nil {
		err = syscall.Setegid(o.GID)
	}
	if err == nil {
		err = syscall.Seteuid(o.UID)
	}
	if err != nil {
		return nil, errors.Join(err, back())
	}
	return back, nil
}
