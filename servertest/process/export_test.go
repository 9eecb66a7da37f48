package process

// Thrown are why clusters of s's snapshot were not handed on.
func Thrown(s *Server) []error {
	s.forks.mu.Lock()
	defer s.forks.mu.Unlock()
	return append([]error(nil), s.forks.thrown...)
}

// Resting waits until no cluster of s's snapshot is starting or going back to it, and
// tells how many there are for the next forks.
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
	s.run.child.cmd.Process.Kill()
	<-s.run.child.ended
}
