package replacements

import (
	"time"
	_ "unsafe" // for go:linkname

	_ "golang.org/x/net/http2" // which has the variable
)

// goAwayTimeout is how long the HTTP/2 server keeps an idle connection open after it has sent
// GOAWAY, for a client that has not read it yet. Upstream made it a variable for its tests,
// whose clients are on the same machine. TestGoAway fails if upstream renames it.
//
//go:linkname goAwayTimeout golang.org/x/net/http2.goAwayTimeout
var goAwayTimeout time.Duration

// loopbackGoAway is the timeout for clients on the same machine. It is long enough for a busy
// client.
const loopbackGoAway = 100 * time.Millisecond

// ShortenGoodbyes makes a stop close idle connections sooner; upstream's second is most of the
// time of a stop. It is for a process with one server that other machines cannot reach. Call
// it before the server starts to serve.
func ShortenGoodbyes() { goAwayTimeout = loopbackGoAway }
