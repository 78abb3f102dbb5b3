package report

import (
	"encoding/xml"
	"fmt"
	"math"
	"strings"

	"github.com/fencepost/fencepost/bench/internal/measure"
)

// Plot is a row of panels that share a logarithmic y axis: for each series a line through the medians, with the quartiles
// as bars.
type Plot struct {
	Title, XLabel, YLabel string
	X                     []string // the points of the x axis, at equal distances
	Line                  float64  // a horizontal line to compare with
	LineName              string
	Panels                []Panel
}

// Panel is one diagram.
type Panel struct {
	Title  string
	Series []Series
}

// Series has one value for each point of the x axis. NaN is not drawn.
type Series struct {
	Name   string
	Values []measure.Summary
}

const (
	panelWidth, panelHeight      = 400.0, 300.0
	marginLeft, marginTop        = 64.0, 70.0
	panelGap, marginBottom, edge = 30.0, 92.0, 20.0
)

// A palette that is distinguishable with colour vision deficiency (Okabe and Ito); each series has its own marker as well.
var colours = []string{"#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"}

// SVG draws the plot.
func (p *Plot) SVG() string {
	c := &canvas{}
	width := marginLeft + float64(len(p.Panels))*(panelWidth+panelGap) - panelGap + edge
	height := marginTop + panelHeight + marginBottom
	fmt.Fprintf(c, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" viewBox="0 0 %.0f %.0f" font-family="sans-serif" font-size="13" fill="#222">`+"\n",
		width, height, width, height)
	fmt.Fprintf(c, `<rect width="%.0f" height="%.0f" fill="#fff"/>`+"\n", width, height)
	c.text(width/2, 26, "middle", `font-size="16" font-weight="bold"`, p.Title)
	c.text(0, 0, "middle", fmt.Sprintf(`transform="translate(18 %.1f) rotate(-90)"`, marginTop+panelHeight/2), p.YLabel)

	ticks := p.ticks()
	lo, hi := math.Log(ticks[0]), math.Log(ticks[len(ticks)-1])
	y := func(v float64) float64 {
		return marginTop + panelHeight*(1-(math.Log(v)-lo)/(hi-lo))
	}
	for i, panel := range p.Panels {
		left := marginLeft + float64(i)*(panelWidth+panelGap)
		p.axes(c, left, y, ticks, i == 0)
		c.text(left+panelWidth/2, marginTop-12, "middle", `font-weight="bold"`, panel.Title)
		for k, s := range panel.Series {
			p.series(c, left, y, k, len(panel.Series), s)
		}
	}
	p.legend(c, width/2, height-18)
	c.WriteString("</svg>\n")
	return c.String()
}

func (p *Plot) x(left float64, i int) float64 {
	return left + panelWidth*(float64(i)+.5)/float64(len(p.X))
}

func (p *Plot) axes(c *canvas, left float64, y func(float64) float64, ticks []float64, labels bool) {
	for _, v := range ticks {
		c.line(left, y(v), left+panelWidth, y(v), `stroke="#ddd"`)
		if labels {
			c.text(left-8, y(v)+4, "end", "", fmt.Sprintf("%g", v))
		}
	}
	c.line(left, y(p.Line), left+panelWidth, y(p.Line), `stroke="#222" stroke-width="1.5" stroke-dasharray="6 4"`)
	c.line(left, marginTop, left, marginTop+panelHeight, `stroke="#222"`)
	c.line(left, marginTop+panelHeight, left+panelWidth, marginTop+panelHeight, `stroke="#222"`)
	for i, name := range p.X {
		c.text(p.x(left, i), marginTop+panelHeight+18, "middle", "", name)
	}
	c.text(left+panelWidth/2, marginTop+panelHeight+38, "middle", "", p.XLabel)
}

func (p *Plot) series(c *canvas, left float64, y func(float64) float64, k, of int, s Series) {
	colour := fmt.Sprintf(`stroke=%q`, colours[k%len(colours)])
	shift := (float64(k) - float64(of-1)/2) * 9 // so that bars do not cover each other
	var last [2]float64
	for i, v := range s.Values {
		if math.IsNaN(v.Median) {
			last = [2]float64{}
			continue
		}
		x := p.x(left, i) + shift
		if last != [2]float64{} {
			c.line(last[0], last[1], x, y(v.Median), colour+` stroke-width="2" stroke-opacity="0.6"`)
		}
		c.line(x, y(v.Q1), x, y(v.Q3), colour+` stroke-width="2"`)
		c.mark(x, y(v.Median), k)
		last = [2]float64{x, y(v.Median)}
	}
}

func (p *Plot) legend(c *canvas, middle, y float64) {
	const step = 130
	var names []string
	for _, s := range p.Panels[0].Series {
		names = append(names, s.Name)
	}
	at := middle - step*float64(len(names)+1)/2
	for k, name := range names {
		c.mark(at, y-4, k)
		c.text(at+12, y, "start", "", name)
		at += step
	}
	c.line(at-12, y-4, at+12, y-4, `stroke="#222" stroke-width="1.5" stroke-dasharray="6 4"`)
	c.text(at+18, y, "start", "", p.LineName)
}

// ticks returns 1, 2, 5, 10, … such that the first is below and the last above all drawn values.
func (p *Plot) ticks() []float64 {
	lo, hi := p.Line, p.Line
	for _, panel := range p.Panels {
		for _, s := range panel.Series {
			for _, v := range s.Values {
				if !math.IsNaN(v.Median) {
					lo, hi = min(lo, v.Q1), max(hi, v.Q3)
				}
			}
		}
	}
	var all []float64
	for e := math.Floor(math.Log10(lo)) - 1; e <= math.Ceil(math.Log10(hi))+1; e++ {
		for _, m := range []float64{1, 2, 5} {
			all = append(all, m*math.Pow(10, e))
		}
	}
	first, last := 0, len(all)-1
	for all[first+1] < lo {
		first++
	}
	for all[last-1] > hi {
		last--
	}
	return all[first : last+1]
}

type canvas struct{ strings.Builder }

func (c *canvas) line(x1, y1, x2, y2 float64, style string) {
	fmt.Fprintf(c, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" %s/>`+"\n", x1, y1, x2, y2, style)
}

func (c *canvas) text(x, y float64, anchor, style, s string) {
	fmt.Fprintf(c, `<text x="%.1f" y="%.1f" text-anchor=%q %s>`, x, y, anchor, style)
	xml.EscapeText(c, []byte(s)) // a strings.Builder returns no error
	c.WriteString("</text>\n")
}

func (c *canvas) mark(x, y float64, k int) {
	const r = 5
	colour := colours[k%len(colours)]
	switch k % 4 {
	case 0:
		fmt.Fprintf(c, `<circle cx="%.1f" cy="%.1f" r="%d" fill=%q/>`+"\n", x, y, r, colour)
	case 1:
		fmt.Fprintf(c, `<rect x="%.1f" y="%.1f" width="%d" height="%d" fill=%q/>`+"\n", x-r, y-r, 2*r, 2*r, colour)
	case 2:
		fmt.Fprintf(c, `<path d="M%.1f %.1fl%d %dh%dz" fill=%q/>`+"\n", x, y-r, r, 2*r, -2*r, colour)
	case 3:
		fmt.Fprintf(c, `<path d="M%.1f %.1fl%d %dl%d %dl%d %dz" fill=%q/>`+"\n", x, y-r, r, r, -r, r, -r, -r, colour)
	}
}
