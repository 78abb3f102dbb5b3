package ledger

import (
	"cmp"
	"slices"
)

// span is the closed range of numbers [from, to]. Lists of spans are ascending, and joined where
// they touch.
type span struct{ from, to uint64 }

// find returns the place of the first span that ends at n or later, and whether n is in it.
func find(spans []span, n uint64) (i int, in bool) {
	i, _ = slices.BinarySearchFunc(spans, n, func(s span, n uint64) int { return cmp.Compare(s.to, n) })
	return i, i < len(spans) && spans[i].from <= n
}

// covered counts the numbers below n in spans.
func covered(spans []span, n uint64) (count uint64) {
	for _, s := range spans {
		if s.from < n {
			count += min(s.to, n-1) - s.from + 1
		}
	}
	return count
}

// with returns spans with n in them.
func with(spans []span, n uint64) []span {
	i, in := find(spans, n)
	if in {
		return spans
	}
	before := i > 0 && spans[i-1].to+1 == n
	behind := i < len(spans) && spans[i].from == n+1
	switch {
	case before && behind:
		spans[i-1].to = spans[i].to
		return slices.Delete(spans, i, i+1)
	case before:
		spans[i-1].to = n
	case behind:
		spans[i].from = n
	default:
		return slices.Insert(spans, i, span{n, n})
	}
	return spans
}

// without returns spans without n.
func without(spans []span, n uint64) []span {
	i, in := find(spans, n)
	if !in {
		return spans
	}
	s := spans[i]
	var rest []span
	if s.from < n {
		rest = append(rest, span{s.from, n - 1})
	}
	if n < s.to {
		rest = append(rest, span{n + 1, s.to})
	}
	return slices.Replace(spans, i, i+1, rest...)
}
