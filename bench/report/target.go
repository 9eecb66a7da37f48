package report

import "strconv"

// Quiet is the part of the machine that other processes may use without a remark.
const Quiet = 0.10

// A Target is what Karve has to reach in a line: a bound for its figure, or for the ratio to the
// peer's. The zero value is no target.
type Target struct {
	bound   float64
	Ratio   bool // the bound is for the ratio
	atLeast bool // otherwise at most
}

// AtMost is an upper bound for a figure.
func AtMost(bound float64) Target { return Target{bound: bound} }

// RatioAtMost is an upper bound for a ratio.
func RatioAtMost(bound float64) Target { return Target{bound: bound, Ratio: true} }

// RatioAtLeast is a lower bound for a ratio.
func RatioAtLeast(bound float64) Target { return Target{bound: bound, Ratio: true, atLeast: true} }

func (t Target) String() string {
	if t == (Target{}) {
		return ""
	}
	sign := "≤ "
	if t.atLeast {
		sign = "≥ "
	}
	s := sign + strconv.FormatFloat(t.bound, 'g', -1, 64)
	if t.Ratio {
		s += " ×"
	}
	return s
}

// Mark reports whether a figure meets the target: met or MISSED, or nothing without a target or, for
// a ratio, without a peer, which is nil then.
func (t Target) Mark(own float64, peer *float64) string {
	if t == (Target{}) {
		return ""
	}
	if t.Ratio {
		if peer == nil || *peer == 0 {
			return ""
		}
		own /= *peer
	}
	if own == t.bound || (own > t.bound) == t.atLeast {
		return "met"
	}
	return "MISSED"
}
