package console

import (
	"context"
	"net/http"

	"millrace/api/console/figures"
	"millrace/api/console/rights"
	"millrace/api/console/signin"
	"millrace/wal/pause"
)

// New makes a Console, which collects figures from now on.
func New(options Options) (*Console, error) {
	options.EnsureDefaults()
	if err := options.Validate(); err != nil {
		return nil, err
	}
	c := &Console{options: options, sessions: signin.New(options.Options), turns: newTurns(),
		done: make(chan struct{})}
	c.needs, c.mux = map[string]rights.Right{}, http.NewServeMux()
	for _, rt := range c.routes() {
		c.needs[rt.method+" "+rt.path] = rt.needs
		c.mux.HandleFunc(rt.method+" "+rt.path, c.serve(rt))
	}
	c.mux.HandleFunc("GET /console/static/{file}", serveStatic)
	c.mux.Handle("GET /{$}", http.RedirectHandler(home, http.StatusSeeOther))
	c.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { c.fail(c.stranger(w, r), notFound()) })
	c.look()
	ctx, cancel := context.WithCancel(context.Background())
	c.stop = cancel
	go c.watch(ctx)
	return c, nil
}

// Close ends the console.
func (c *Console) Close() error {
	c.stop()
	<-c.done
	return nil
}

// watch adds a sample now and then, until ctx ends.
func (c *Console) watch(ctx context.Context) {
	defer close(c.done)
	for range pause.Every(figures.Interval, ctx.Done()) {
		c.look()
	}
}

func (c *Console) look() { c.samples.Add(figures.Read(c.options.Now(), c.options.Figures(nil))) }

// serve does what comes before a route's handler: it finds out who makes the request, and checks the right that the
// route needs and, when the route changes something, the token of the form. Then it waits for a turn.
func (c *Console) serve(rt *route) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v := &visit{c: c, w: w, r: r, route: rt, status: http.StatusOK, Person: c.whoIs(r)}
		err := v.admit()
		if err == nil {
			err = v.beginTurn()
		}
		if err == nil {
			defer v.endTurn()
			err = rt.handler(v)
		}
		if err != nil {
			c.fail(v, err)
		}
	}
}
