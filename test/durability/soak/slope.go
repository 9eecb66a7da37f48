package main

// A point of a figure over time.
type point struct {
	group int // points of one group share a level
	x, y  float64
}

// slope is the least-squares slope of points that have a common slope and, for each
// group, a level of its own: x and y are taken relative to their group's mean. With
// one group it is the ordinary regression. ok is false if no group has two points
// with different x.
func slope(points []point) (perX float64, ok bool) {
	type mean struct{ n, x, y float64 }
	means := map[int]mean{}
	for _, p := range points {
		m := means[p.group]
		means[p.group] = mean{m.n + 1, m.x + p.x, m.y + p.y}
	}
	var xx, xy float64
	for _, p := range points {
		m := means[p.group]
		dx, dy := p.x-m.x/m.n, p.y-m.y/m.n
		xx += dx * dx
		xy += dx * dy
	}
	if xx == 0 {
		return 0, false
	}
	return xy / xx, true
}
