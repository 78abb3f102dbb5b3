package main

import (
	"fmt"
	"strings"
	"time"
)

// Dimensions of the picture, in pixels.
const (
	margin    = 24
	labels    = 84  // width of the labels on the left
	plot      = 720 // width of the time axis
	rowHeight = 16
	barHeight = 11
	header    = 40 // height of a panel above its rows
	footer    = 34 // and below
)

// waterfall draws the calls of all results, as the network view of a browser would: light while a call waited for a lock,
// dark while it was served, red if its payment ended up wrong. All panels have the same time axis.
func waterfall(results []*result) string {
	var end time.Duration
	height := margin
	for _, r := range results {
		end = max(end, r.total())
		height += header + rowHeight*len(r.calls) + footer
	}
	step := tick(end)
	end = (end + step - 1) / step * step
	x := func(d time.Duration) float64 { return margin + labels + plot*float64(d)/float64(end) }

	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	width := margin + labels + plot + margin + 30
	p(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`,
		width, height, width, height)
	p(`<rect width="100%%" height="100%%" fill="#ffffff"/>`)
	top := margin
	for _, r := range results {
		verdict := "all payments right"
		if len(r.wrong) > 0 {
			verdict = "wrong payments: " + r.wrongText()
		}
		p(`<text x="%d" y="%d" font-size="14" font-weight="bold">%s</text>`, margin, top+12, r.title)
		p(`<text x="%d" y="%d" text-anchor="end" fill="#555555">longest call %.2f s · total %.2f s · %s</text>`,
			margin+labels+plot, top+12, r.longest().Seconds(), r.total().Seconds(), verdict)
		rows := top + header - 12
		bottom := rows + rowHeight*len(r.calls)
		for t := time.Duration(0); t <= end; t += step {
			p(`<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#dddddd"/>`, x(t), rows, x(t), bottom)
			p(`<text x="%.1f" y="%d" text-anchor="middle" fill="#777777">%g s</text>`, x(t), bottom+14, t.Seconds())
		}
		for i, c := range r.calls {
			y := rows + i*rowHeight + (rowHeight-barHeight)/2
			served, name := "#2f6fb5", fmt.Sprintf("payment %d", c.payment)
			if r.isWrong(c.payment) {
				served = "#c0392b"
			}
			p(`<text x="%d" y="%d">%s</text>`, margin, y+barHeight-1, name)
			p(`<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="#cfd8e3"/>`, x(c.start), y, x(c.locked)-x(c.start), barHeight)
			p(`<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"/>`, x(c.locked), y, x(c.end)-x(c.locked), barHeight, served)
			p(`<text x="%.1f" y="%d" fill="#555555">%.2f s</text>`, x(c.end)+4, y+barHeight-1, (c.end - c.start).Seconds())
		}
		top = bottom + footer + 12
	}
	p(`</svg>`)
	return b.String()
}

// tick returns the distance between the lines of the time axis: a round number, with at most 15 steps on the axis.
func tick(end time.Duration) time.Duration {
	for d := 10 * time.Millisecond; ; d *= 10 {
		for _, f := range []time.Duration{1, 2, 5} {
			if end <= 15*d*f {
				return d * f
			}
		}
	}
}
