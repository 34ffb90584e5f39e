package model

import (
	"maps"
	"slices"
	"time"
)

// Shrink looks for a shorter sequence that still shows a difference when it is sent again about new populations, and
// puts it into d. next makes a population that nobody has had.
func Shrink(o Options, d *Difference, next func() *Population, limit time.Duration) {
	s := &shrinker{o: o, next: next, end: time.Now().Add(limit)}
	o.Patience = min(o.Patience, time.Second)
	list := clear(d.Requests)
	if s.text(list) == "" {
		return
	}
	for before := -1; before != s.runs && time.Now().Before(s.end); {
		before = s.runs
		size := sizeOf(list)
		list = s.cutRequests(list)
		list = s.cutObjects(list)
		list = s.cutMembers(list)
		if sizeOf(list) == size {
			break
		}
	}
	d.Short, d.ShortHas = list, s.text(list)
	if d.ShortHas == "" {
		d.ShortHas = d.Text + " (now and then)"
	}
}

type shrinker struct {
	o    Options
	next func() *Population
	end  time.Time
	runs int
}

// clear leaves out what is only told about a request, not sent.
func clear(list []*Request) (out []*Request) {
	for _, r := range list {
		c := *r
		c.Note = ""
		out = append(out, &c)
	}
	return out
}

func sizeOf(list []*Request) (n int) {
	for _, r := range list {
		n += len(line(r.Body))
	}
	return n
}

// text is the difference that a sequence shows, "" for none.
func (s *shrinker) text(list []*Request) string {
	s.runs++
	q := NewSequence(s.o, s.next())
	for _, r := range list {
		c := *r
		if d := q.write(&c); d != "" {
			return d
		}
		if d := q.check(q.allReads(), 0); d != "" {
			return d
		}
	}
	return ""
}

func (s *shrinker) fails(list []*Request) bool { return time.Now().Before(s.end) && s.text(list) != "" }

// cutRequests leaves out requests, many at once first.
func (s *shrinker) cutRequests(list []*Request) []*Request {
	for size := max(1, len(list)/2); ; size /= 2 {
		for at := len(list) - size; at >= 0; at -= size {
			if at+size > len(list) {
				continue
			}
			if cut := slices.Delete(slices.Clone(list), at, at+size); s.fails(cut) {
				list = cut
			}
		}
		if size <= 1 {
			return list
		}
	}
}

// cutObjects leaves out elements of the arrays of bodies. One element of each array stays, except in /users/track when
// the body has another array: a request for nothing at all is another matter.
func (s *shrinker) cutObjects(list []*Request) []*Request {
	for i := range list {
		for _, array := range slices.Sorted(maps.Keys(list[i].Body)) {
			for k := len(elements(list[i].Body[array])) - 1; k >= 0; k-- {
				objects := slices.Delete(slices.Clone(elements(list[i].Body[array])), k, k+1)
				if len(objects) == 0 && (list[i].Path != "/users/track" || len(list[i].Body) == 1) {
					continue
				}
				if cut := with(list, i, array, objects); s.fails(cut) {
					list = cut
				}
			}
		}
	}
	return list
}

// needed are the members without which an object would be another one.
var needed = []string{"external_id", "user_alias", "svc_id", "email", "phone", "name", "time", "product_id", "currency",
	"price"}

// cutMembers leaves out members of the objects of /users/track.
func (s *shrinker) cutMembers(list []*Request) []*Request {
	for i := range list {
		for _, array := range inputs {
			for k, v := range elements(list[i].Body[array]) {
				for _, name := range slices.Sorted(maps.Keys(v.(map[string]any))) {
					if slices.Contains(needed, name) &&
						(name != "email" && name != "phone" || !isPrimary(v.(map[string]any))) {
						continue
					}
					objects := slices.Clone(elements(list[i].Body[array]))
					less := maps.Clone(objects[k].(map[string]any))
					delete(less, name)
					objects[k] = less
					if cut := with(list, i, array, objects); s.fails(cut) {
						list = cut
					}
				}
			}
		}
	}
	return list
}

func with(list []*Request, i int, member string, v any) []*Request {
	list = slices.Clone(list)
	r := *list[i]
	r.Body = maps.Clone(r.Body)
	if len(elements(v)) == 0 {
		delete(r.Body, member)
	} else {
		r.Body[member] = v
	}
	list[i] = &r
	return list
}
