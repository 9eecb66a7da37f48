package check

import (
	"strings"
	"testing"
)

func TestLocksThatStayOnTheMachine(t *testing.T) {
	const mounts = `25 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw
61 25 0:52 / /mnt/a,nolock,b rw,relatime shared:30 - nfs4 nas:/a rw,vers=4.2,hard,proto=tcp,local_lock=none,addr=192.0.2.1
62 25 0:53 / /mnt/b rw,relatime - nfs nas:/b rw,vers=3,hard,nolock,proto=tcp,local_lock=all,addr=192.0.2.1
63 25 0:54 / /mnt/c rw,relatime - nfs nas:/c rw,vers=3,local_lock=flock,addr=192.0.2.1
65 25 0:56 / /mnt/e rw,relatime - cifs //nas/e rw,vers=3.1.1,nobrl,addr=192.0.2.1
64 25 0:55 / /mnt/d rw,relatime - nfs nas:/d rw,vers=3,local_lock=posix,addr=192.0.2.1
`
	for device, want := range map[string]string{"8:2": "", "0:52": "", "0:53": "nolock", "0:54": "local_lock=flock", "0:55": "", "0:56": "nobrl", "0:5": ""} {
		err := localLocks(mounts, device)
		if got := err != nil; got != (want != "") || got && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error for %q", device, err, want)
		}
	}
}
