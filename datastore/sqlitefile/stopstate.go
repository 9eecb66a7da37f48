package sqlitefile

// stopState is the value of the meta row "clean". It says how the last process left the database,
// and whether the database needs its WAL.
//
// While an engine runs, the row is "sealed" in the WAL and "open" in the database itself: each
// checkpoint of the engine commits "open", copies the whole WAL back, and commits "sealed" (see
// [File.WriteBack]). So a database without its WAL shows which of two things has happened. It says
// "sealed" if another program has copied the whole WAL back. It says "open" if commits are missing.
//
// Earlier releases know the first three values. They treat every value but stopClosed as that of a
// killed process, and overwrite it when they start. So their file never says "sealed".
type stopState int64

const (
	stopClosed        stopState = 1  // closed in order: the database is complete without a WAL
	stopOpen          stopState = 0  // in use, or killed
	stopOpenRelaxed   stopState = -1 // the same, in mode relaxed
	stopSealed        stopState = 2  // in use, or killed; every commit before this one is there
	stopSealedRelaxed stopState = -2 // the same, in mode relaxed
)

// closed reports whether the last process closed the database in order.
func (s stopState) closed() bool { return s == stopClosed }

// open reports whether the last commit was that of a start or of a checkpoint.
func (s stopState) open() bool { return s == stopOpen || s == stopOpenRelaxed }

// ordered reports whether each commit was on the disk before the next one was written.
func (s stopState) ordered() bool { return s == stopOpen || s == stopSealed }

// sealed reports whether a database that says so without its WAL is complete.
func (s stopState) sealed() bool { return s == stopSealed || s == stopSealedRelaxed }

// inUseStates returns the states that an engine of that mode writes while it runs.
func inUseStates(relaxed bool) (open, sealed stopState) {
	if relaxed {
		return stopOpenRelaxed, stopSealedRelaxed
	}
	return stopOpen, stopSealed
}
