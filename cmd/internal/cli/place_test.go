package cli

import (
	"strings"
	"testing"
	"time"
)

// An age in days is a time, although 7d and 365d are hex digits, too. The 32 characters of an ID are an ID, whatever else they could be.
func TestPlaceDaysAgo(t *testing.T) {
	for text, days := range map[string]int{"7d": 7, "30d": 30, "365d": 365} {
		p, ok := ParsePlace(text)
		if since := time.Duration(days) * 24 * time.Hour; !ok || p.IsIndex || p.IDs != nil || time.Since(p.Since) < since || time.Since(p.Since) > since+24*time.Hour {
			t.Errorf("%s: %+v, %v", text, p, ok)
		}
	}
	for _, text := range []string{"ab7d", "65536d", strings.Repeat("0", 30) + "7d"} {
		if p, ok := ParsePlace(text); !ok || p.IDs == nil {
			t.Errorf("%s: %+v, %v", text, p, ok)
		}
	}
}
