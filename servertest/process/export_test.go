package process

// Connect returns the cluster of a kubeconfig.
var Connect = connect

// Sweep removes the directories in above that killed tests have left.
var Sweep = sweep

// Thrown returns why clusters of s's snapshot were discarded.
func Thrown(s *Server) []error {
	s.forks.mu.Lock()
	defer s.forks.mu.Unlock()
	return append([]error(nil), s.forks.thrown...)
}

// Resting waits until no cluster of s's snapshot is starting or returning to it. It returns
// how many are there for the next forks.
func Resting(s *Server) int {
	s.forks.mu.Lock()
	defer s.forks.mu.Unlock()
	for s.forks.starting+s.forks.cleaning > 0 {
		s.forks.changed.Wait()
	}
	return len(s.forks.idle)
}

// Kill ends the process of s as a crash does.
func Kill(s *Server) {
	_ = s.run.process.Kill() // it may have ended
}
