package ui_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/cmd/internal/ui/uitest"
	"github.com/fencepost/fencepost/queue"
)

func TestPayloadForms(t *testing.T) {
	e := uitest.New(t)
	ctx := context.Background()
	p, err := queue.NewPublisher(ctx, e.Backend.Queue, queue.PublisherOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(ctx)
	s := serve(t, e.Options())
	for _, c := range []struct {
		payload, as string
		want        []string
	}{
		{`{"a":[1,{"b":"<x>"}]}`, "", []string{"{\n  &#34;a&#34;: [\n    1,", "&lt;x&gt;"}},
		{`{"a":1}`, "text", []string{"{&#34;a&#34;:1}</pre>"}},
		{`{"a":`, "json", []string{"It is not JSON"}},
		{"plain\ttext\r\n", "", []string{`plain\ttext\r`}},
		{"\xff\x00ab", "", []string{"00000000  ff 00 61 62", "|..ab|"}},
		{"\xffab", "text", []string{`\xffab`, "It is not UTF-8 text"}},
		{"", "", []string{"It is empty"}},
		{strings.Repeat("[", 5000) + strings.Repeat("]", 5000), "json", []string{"nested too deeply"}},
		{"[" + strings.Repeat("1,", 200_000) + "1]", "json", []string{"larger than 256 KiB"}},
		{strings.Repeat("ä", 40_000), "", []string{"These are the first 64 KiB"}},
		{strings.Repeat("x", 20_000), "hex", []string{"These are the first 16 KiB"}},
	} {
		id, err := p.Publish(ctx, "forms", []byte(c.payload), nil)
		if err != nil {
			t.Fatal(err)
		}
		path := "/types/forms/pending/" + id.String()
		uitest.Until(t, "the type is seen", func() bool { res, _ := get(t, s, path); return res.StatusCode == 200 })
		if c.as != "" {
			path += "?as=" + c.as
		}
		body := page(t, s, path)
		if has(t, fmt.Sprintf("%.20q as %q", c.payload, c.as), body, c.want...); len(body) > 200<<10 {
			t.Errorf("%.20q as %q: a page of %d bytes", c.payload, c.as, len(body))
		}
		if _, raw := get(t, s, "/types/forms/pending/"+id.String()+"/payload"); raw != c.payload {
			t.Errorf("downloaded %.20q, want %.20q", raw, c.payload)
		}
	}
}
