package ui

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/fencepost/fencepost/worker"
)

var version = worker.Version()

// clock formats a time of today.
func clock(t time.Time) string { return t.UTC().Format("15:04:05") + " UTC" }

// date formats a time in UTC, as the footer of each page says.
func date(t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	return t.UTC().Format("2006-01-02 15:04:05.000")
}

// span formats a duration in one or two units: 3.2 s, 4 min 10 s, 2 d 3 h.
func span(d time.Duration) string {
	sign := ""
	if d < 0 {
		sign, d = "−", -d
	}
	two := func(a int64, ua string, b int64, ub string) string {
		if b == 0 {
			return fmt.Sprintf("%s%d %s", sign, a, ua)
		}
		return fmt.Sprintf("%s%d %s %d %s", sign, a, ua, b, ub)
	}
	s := int64(d / time.Second)
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%s%.1f s", sign, math.Floor(d.Seconds()*10)/10)
	case d < time.Minute:
		return fmt.Sprintf("%s%d s", sign, s)
	case d < time.Hour:
		return two(s/60, "min", s%60, "s")
	case d < 24*time.Hour:
		return two(s/3600, "h", s%3600/60, "min")
	}
	return two(s/86400, "d", s%86400/3600, "h")
}

// count formats a number with thousands separators.
func count[T int | int64 | uint64](n T) string {
	if uint64(n) > math.MaxInt64 {
		return strconv.FormatUint(uint64(n), 10)
	}
	return humanize.Comma(int64(n))
}

func size(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }

// perSecond formats a rate.
func perSecond(r float64) string {
	switch {
	case r == 0:
		return "0/s"
	case r < 10:
		return fmt.Sprintf("%.1f/s", r)
	}
	return humanize.Comma(int64(math.Round(r))) + "/s"
}

// plural formats a number with its noun.
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return count(n) + " " + many
}

// spark returns the path of a small curve, 0 to 100 wide and 0 to 24 high, of rates. Unknown rates are NaN.
func spark(rates []float64) (line, area string) {
	most := 0.0
	for _, r := range rates {
		if r > most {
			most = r
		}
	}
	var l, a strings.Builder
	step := 100 / float64(max(len(rates)-1, 1))
	begun := false
	last := 0.0
	for i, r := range rates {
		if math.IsNaN(r) {
			if begun {
				a.WriteString(endArea(last))
			}
			begun = false
			continue
		}
		x, y := float64(i)*step, 22.5
		if most > 0 {
			y = 22.5 - 20*r/most
		}
		verb := "L"
		if !begun {
			verb = "M"
			a.WriteString("M" + point(x, 24))
		}
		l.WriteString(verb + point(x, y))
		a.WriteString("L" + point(x, y))
		begun, last = true, x
	}
	if begun {
		a.WriteString(endArea(last))
	}
	return l.String(), a.String()
}

func endArea(x float64) string { return "L" + point(x, 24) + "Z" }

func point(x, y float64) string { return number(x) + " " + number(y) }

// firstLine returns the beginning of a text that may have several lines.
func firstLine(s string) string {
	line, _, more := strings.Cut(strings.TrimSpace(s), "\n")
	if r := []rune(line); len(r) > 200 {
		line, more = string(r[:200]), true
	}
	if more {
		line += " …"
	}
	return line
}
