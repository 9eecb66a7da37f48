package process

import "slices"

// Sweep removes the directories in above that killed tests have left.
var Sweep = sweep

// Thrown returns why clusters of s's snapshot were discarded.
func Thrown(s *Server) []error {
	s.base.forks.mu.Lock()
	defer s.base.forks.mu.Unlock()
	return append([]error(nil), s.base.forks.thrown...)
}

// Resting waits until no cluster of s's snapshot is starting or returning to it. It returns
// how many are there for the next forks.
func Resting(s *Server) int {
	s.base.forks.mu.Lock()
	defer s.base.forks.mu.Unlock()
	for s.base.forks.starting+s.base.forks.cleaning > 0 {
		s.base.forks.changed.Wait()
	}
	return len(s.base.forks.idle)
}

// Same reports whether the clusters that are there for the next forks are as the snapshot was.
func Same(s *Server) bool {
	s.base.forks.mu.Lock()
	defer s.base.forks.mu.Unlock()
	return !slices.ContainsFunc(s.base.forks.idle, func(one *fork) bool { return !one.same() })
}

// Kill ends the process of s as a crash does.
func Kill(s *Server) {
	_ = s.run.child.process.Kill() // it may have ended
}
