package replacements

import (
	"time"
	_ "unsafe" // for go:linkname

	_ "golang.org/x/net/http2" // which has the variable
)

// goAwayTimeout is how long the HTTP/2 server keeps an idle connection after it has told
// the client to go away, for a client that has not read that yet. It is a variable for
// tests, whose clients are on the same machine. TestGoAway fails when it is renamed.
//
//go:linkname goAwayTimeout golang.org/x/net/http2.goAwayTimeout
var goAwayTimeout time.Duration

// loopbackGoAway is that for clients on the same machine: enough for one that is busy.
const loopbackGoAway = 100 * time.Millisecond

// ShortenGoodbyes ends idle connections sooner in a stop: a second is most of what one
// takes. It is for a process with one server, which other machines can't reach, and
// before that serves.
func ShortenGoodbyes() { goAwayTimeout = loopbackGoAway }
