package machine

import (
	"os"
	"os/exec"
	"runtime"
	"testing"
)

func TestProcFields(t *testing.T) {
	const size = 8 << 20
	memory := make([]byte, size)
	for i := range memory { // the kernel counts what was written
		memory[i] = 1
	}
	anonymous, err := AnonymousMemory(OwnPID)
	if err != nil || anonymous < size {
		t.Errorf("anonymous memory of this test is %d, %v, want at least %d", anonymous, err, size)
	}
	runtime.KeepAlive(memory)
	if resident, err := ResidentMemory(OwnPID); err != nil || resident < anonymous {
		t.Errorf("resident memory is %d, %v, less than the anonymous %d", resident, err, anonymous)
	}
	if _, err := WrittenBytes(OwnPID); err != nil {
		t.Error(err)
	}
}

// The time of a child counts when it has been waited for, and not before.
func TestTimeWithChildren(t *testing.T) {
	before := TimeWithChildren(os.Getpid())
	if err := exec.Command("sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done").Run(); err != nil {
		t.Fatal(err)
	}
	if after := TimeWithChildren(os.Getpid()); after <= before {
		t.Errorf("%v before and %v after a busy child", before, after)
	}
	if gone := TimeWithChildren(1 << 30); gone != 0 {
		t.Errorf("%v of a process that does not exist", gone)
	}
}
