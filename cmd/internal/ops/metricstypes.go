package ops

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/fencepost/fencepost/worker/metrics"
)

// MetricsTypes is the value of --metrics-types: how many types have their own series.
type MetricsTypes struct{ most int }

// NewMetricsTypes returns the default of package metrics.
func NewMetricsTypes() *MetricsTypes { return &MetricsTypes{metrics.DefaultTypes} }

// Option returns the option for metrics.New.
func (m *MetricsTypes) Option() metrics.Option { return metrics.MaxTypes(m.most) }

func (m *MetricsTypes) String() string {
	switch m.most {
	case metrics.AllTypes:
		return "all"
	case 0:
		return "none"
	}
	return "top" + strconv.Itoa(m.most)
}

// Type implements pflag.Value.
func (m *MetricsTypes) Type() string { return "all|topN|none" }

// Set parses all, none, or top and a number.
func (m *MetricsTypes) Set(v string) error {
	number, top := strings.CutPrefix(v, "top")
	n, err := strconv.ParseUint(number, 10, 31)
	switch {
	case v == "all":
		m.most = metrics.AllTypes
	case v == "none":
		m.most = 0
	case top && err == nil && n > 0:
		m.most = int(n)
	default:
		return fmt.Errorf("%q is none of all, none, and top with a number, as in top%d", v, metrics.DefaultTypes)
	}
	return nil
}
