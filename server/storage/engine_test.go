package storage

import "testing"

func TestCacheBytes(t *testing.T) {
	for limit, want := range map[int64]int64{0: 64 << 20, 96 << 20: 6 << 20, 160 << 20: 10 << 20, 1 << 20: 4 << 20, 512 << 20: 32 << 20, 12 << 30: 64 << 20} {
		if got := cacheBytes(limit); got != want {
			t.Errorf("with a limit of %d: got %d, want %d", limit, got, want)
		}
	}
}
