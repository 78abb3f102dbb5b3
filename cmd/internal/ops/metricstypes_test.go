package ops

import "testing"

func TestMetricsTypes(t *testing.T) {
	if got := NewMetricsTypes().String(); got != "top100" {
		t.Errorf("the default is %s", got)
	}
	for _, v := range []string{"all", "none", "top1", "top250"} {
		m := NewMetricsTypes()
		if err := m.Set(v); err != nil || m.String() != v {
			t.Errorf("%s: %s, %v", v, m, err)
		}
	}
	for _, v := range []string{"", "top", "top0", "top-1", "top+1", "100", "top99999999999", "ALL", "some"} {
		if m := NewMetricsTypes(); m.Set(v) == nil || m.String() != "top100" {
			t.Errorf("%q was taken: %s", v, m)
		}
	}
}
