package ownership

import (
	"errors"
	"syscall"
)

// become makes o the effective user and group of every thread, without root's groups. The
// real and the saved ones stay root's. So this process can return to root, and o can
// neither trace nor signal it.
func become(o Owner) (back func() error, err error) {
	groups, err := syscall.Getgroups()
	if err != nil {
		return nil, err
	}
	group := syscall.Getegid()
	back = func() error {
		return errors.Join(syscall.Setresuid(-1, 0, -1), syscall.Setresgid(-1, group, -1), syscall.Setgroups(groups))
	}
	// The user comes last: a process that is not root may not change its groups.
	err = syscall.Setgroups([]int{o.GID})
	if err == nil {
		err = syscall.Setresgid(-1, o.GID, -1)
	}
	if err == nil {
		err = syscall.Setresuid(-1, o.UID, -1)
	}
	if err != nil {
		return nil, errors.Join(err, back())
	}
	return back, nil
}
