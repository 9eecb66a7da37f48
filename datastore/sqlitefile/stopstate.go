package sqlitefile

// stopState is the value of the meta row "clean": what is known of the last process that
// had the database open, and whether the database needs its log.
//
// While an engine runs, the row is "sealed" in the log and "open" in the database itself:
// each checkpoint of the engine commits "open", copies the whole log back, and commits
// "sealed" (see [disk.writeBack]). So a database without its log says which of two things
// has happened. "sealed" has reached it: another program has copied the whole log back.
// "open": commits are missing.
//
// Earlier releases know the first three. They take every value but stopClosed for that of
// a killed process, and overwrite it when they start: so their file never says "sealed".
type stopState int64

const (
	stopClosed        stopState = 1  // closed in order: the database is everything
	stopOpen          stopState = 0  // in use, or killed
	stopOpenRelaxed   stopState = -1 // the same, in mode Relaxed
	stopSealed        stopState = 2  // in use, or killed; all of the log up to here is there
	stopSealedRelaxed stopState = -2 // the same, in mode Relaxed
)

// closed tells whether the last process closed the database in order.
func (s stopState) closed() bool { return s == stopClosed }

// ordered tells whether each commit was on the disk before the next was written.
func (s stopState) ordered() bool { return s == stopOpen || s == stopSealed }

// sealed tells whether a database that says so without its log lacks nothing.
func (s stopState) sealed() bool { return s == stopSealed || s == stopSealedRelaxed }

// inUseStates are what an engine of that mode writes while it runs.
func inUseStates(relaxed bool) (open, sealed stopState) {
	if relaxed {
		return stopOpenRelaxed, stopSealedRelaxed
	}
	return stopOpen, stopSealed
}
