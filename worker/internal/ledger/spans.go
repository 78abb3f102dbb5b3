package ledger

import (
	"cmp"
	"slices"
)

// span is the closed range of numbers [From, To]. Lists of spans are ascending, and adjacent spans are
// merged. Find and With also accept lists of other types of that form.
type span struct{ From, To uint64 }

// Find returns the index of the first span that ends at n or later, and whether n is in it.
func Find[S ~struct{ From, To uint64 }](spans []S, n uint64) (i int, in bool) {
	i, _ = slices.BinarySearchFunc(spans, n, func(s S, n uint64) int { return cmp.Compare(span(s).To, n) })
	return i, i < len(spans) && span(spans[i]).From <= n
}

// covered counts the numbers below n in spans.
func covered(spans []span, n uint64) (count uint64) {
	for _, s := range spans {
		if s.From < n {
			count += min(s.To, n-1) - s.From + 1
		}
	}
	return count
}

// With returns spans with n added.
func With[S ~struct{ From, To uint64 }](spans []S, n uint64) []S {
	i, in := Find(spans, n)
	if in {
		return spans
	}
	before := i > 0 && span(spans[i-1]).To+1 == n
	behind := i < len(spans) && span(spans[i]).From == n+1
	switch {
	case before && behind:
		spans[i-1] = S{span(spans[i-1]).From, span(spans[i]).To}
		return slices.Delete(spans, i, i+1)
	case before:
		spans[i-1] = S{span(spans[i-1]).From, n}
	case behind:
		spans[i] = S{n, span(spans[i]).To}
	default:
		return slices.Insert(spans, i, S{n, n})
	}
	return spans
}

// without returns spans with n removed.
func without(spans []span, n uint64) []span {
	i, in := Find(spans, n)
	if !in {
		return spans
	}
	s := spans[i]
	var rest []span
	if s.From < n {
		rest = append(rest, span{s.From, n - 1})
	}
	if n < s.To {
		rest = append(rest, span{n + 1, s.To})
	}
	return slices.Replace(spans, i, i+1, rest...)
}
