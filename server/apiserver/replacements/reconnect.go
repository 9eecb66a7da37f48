package replacements

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
)

// reconnectEvery is how often a storage client tries to connect to an etcd that is away. Without it, gRPC waits longer
// after each attempt, up to two minutes, and a server is not ready for so long after the etcd is back.
const reconnectEvery = 2 * time.Second

// reconnect has a connection try again soon, until ctx ends.
func reconnect(ctx context.Context, conn *grpc.ClientConn, every time.Duration) {
	for ctx.Err() == nil {
		state := conn.GetState()
		if state == connectivity.Shutdown {
			return
		}
		if state != connectivity.TransientFailure {
			conn.WaitForStateChange(ctx, state)
			continue
		}
		select {
		case <-time.After(every):
			conn.ResetConnectBackoff()
		case <-ctx.Done():
		}
	}
}
