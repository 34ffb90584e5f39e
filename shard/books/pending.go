package books

// pending is what is new in a book: it is in memory until it is in the store.
type pending[T any] struct {
	added  []T
	saving int // how many of added are in a batch on its way to the store
}

// saveEach writes what is new, row by row.
func (p *pending[T]) saveEach(write func(T) error) error {
	for _, row := range p.added {
		if err := write(row); err != nil {
			return err
		}
	}
	p.saving = len(p.added)
	return nil
}

// saved removes from memory what is in the store.
func (p *pending[T]) saved() {
	if p.saving > 0 {
		p.added, p.saving = append([]T(nil), p.added[p.saving:]...), 0
	}
}
