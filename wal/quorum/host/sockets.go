package host

import (
	"context"
	"net"
	"time"
)

// Sockets are the functions by which a Host listens and dials.
type Sockets struct {
	Listen func(address string) (net.Listener, error)
	Dial   func(address string, deadline time.Time) (net.Conn, error)
}

// keepAlive: a node that is gone without a word is noticed after four times as long.
const keepAlive = 5 * time.Second

var (
	tcp = &Sockets{
		Listen: func(address string) (net.Listener, error) {
			config := net.ListenConfig{KeepAliveConfig: aliveConfig}
			return config.Listen(context.Background(), "tcp", address)
		},
		Dial: func(address string, deadline time.Time) (net.Conn, error) {
			dialer := net.Dialer{Deadline: deadline, KeepAliveConfig: aliveConfig}
			return dialer.Dial("tcp", address)
		},
	}
	aliveConfig = net.KeepAliveConfig{Enable: true, Idle: keepAlive, Interval: keepAlive, Count: 3}
)
