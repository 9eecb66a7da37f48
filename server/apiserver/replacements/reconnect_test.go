package replacements

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/karve-k8s/karve/internal/eventually"
)

// A connection whose next attempt would be in an hour is there soon after its server is.
func TestReconnect(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	hour := backoff.Config{BaseDelay: time.Hour, Multiplier: 1, MaxDelay: time.Hour}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(grpc.ConnectParams{Backoff: hour}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.Connect()
	state := func(want connectivity.State) func() bool { return func() bool { return conn.GetState() == want } }
	eventually.True(t, "the first attempt fails", state(connectivity.TransientFailure))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); reconnect(ctx, conn, 20*time.Millisecond) }()
	if listener, err = net.Listen("tcp", address); err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	defer server.Stop()
	go server.Serve(listener)
	eventually.True(t, "the connection is ready", state(connectivity.Ready))
	cancel()
	eventually.Receive(t, "the end", ended)
}
