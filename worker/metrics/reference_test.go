package metrics

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/generated"
	"github.com/prometheus/client_golang/prometheus"
)

// docs/metrics.md lists every metric as it is.
func TestReference(t *testing.T) {
	generated.Part(t, "../../docs/metrics.md", "worker", table(New(), func(name string) string {
		for _, g := range states {
			if strings.Contains(g.desc.String(), strconv.Quote(name)) {
				return "gauge"
			}
		}
		switch {
		case strings.HasSuffix(name, "_total"):
			return "counter"
		case strings.HasSuffix(name, "_seconds") && !strings.Contains(name, "_age_"), name == "fencepost_batch_messages":
			return "histogram"
		}
		return "gauge"
	}))
	generated.Part(t, "../../docs/metrics.md", "store", table(NewStore(), func(name string) string {
		if strings.HasSuffix(name, "_total") {
			return "counter"
		}
		return "histogram"
	}))
	generated.Part(t, "../../docs/metrics.md", "publisher", table(Publisher(nil), func(name string) string {
		if strings.HasSuffix(name, "_total") {
			return "counter"
		}
		return "gauge"
	}))
}

var descPattern = regexp.MustCompile(`^Desc{fqName: "([^"]+)", help: "([^"]+)", constLabels: {}, variableLabels: {(.*)}}$`)

// table describes the metrics of a collector in Markdown, sorted.
func table(c prometheus.Collector, kind func(name string) string) string {
	descs := make(chan *prometheus.Desc)
	go func() { c.Describe(descs); close(descs) }()
	var rows []string
	for d := range descs {
		m := descPattern.FindStringSubmatch(d.String())
		if m == nil {
			panic(d.String())
		}
		labels := ""
		if m[3] != "" {
			labels = "`" + strings.ReplaceAll(m[3], ",", "`, `") + "`"
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |\n", m[1], kind(m[1]), labels, m[2]))
	}
	slices.Sort(rows)
	return "| metric | kind | labels | |\n|---|---|---|---|\n" + strings.Join(rows, "")
}
