package machine

import (
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
	if _, err := procField("/proc/self/status", "RssNone"); err == nil {
		t.Error("a field that is not there was read")
	}
}
