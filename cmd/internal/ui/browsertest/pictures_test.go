package browsertest

import (
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/queue"
)

var pictures = flag.String("pictures", "", "directory for the pictures of docs, which TestPictures makes anew in a minute; without, it is skipped")

// TestPictures makes pictures for docs, in light and dark: go test -run TestPictures -pictures ../../../../docs/images
func TestPictures(t *testing.T) {
	if *pictures == "" {
		t.Skip("-pictures names no directory")
	}
	needBrowser(t)
	take := func(p *tab, name string, height int64) {
		t.Helper()
		for _, scheme := range []string{"light", "dark"} {
			p.look(1200, scheme)
			call(p, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: 1200, Height: height, DeviceScaleFactor: 1})
			png, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(*pictures, name+"-"+scheme+".png"), png, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Run("confirm", func(t *testing.T) {
		_, o := acting(t)
		s := serve(t, o)
		p := newTab(t)
		p.run(chromedp.Navigate(s.URL + "/act/purge?type=invoices"))
		p.title("Remove pending messages")
		take(p, "ui-confirm", 720)
	})
	t.Run("draining", func(t *testing.T) {
		program := build(t)
		dir := filepath.Join(os.TempDir(), "shop") // the pages show it
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		url := "sqlite://" + filepath.Join(dir, "fencepost.db")
		publish(t, url)
		begin := func(args ...string) { start(t, program, append(args, "--url", url, "--dir", dir)...) }
		begin("worker", "--all-types", "--max-types", "3")
		begin("worker", "--all-types", "--max-types", "3")
		dies := start(t, program, "worker", "--all-types", "--max-types", "3", "--url", url, "--dir", dir)
		pages := start(t, program, "ui", "--listen", "127.0.0.1:0", "--refresh", "1s", "--url", url, "--dir", dir)
		p := newTab(t)
		p.open(pages.printed(`(http://\S+/)`) + "types")
		time.Sleep(45 * time.Second) // as long as the curves are
		dies.kill()
		p.is(`[...document.querySelectorAll(".badge")].some((b) => b.textContent.includes("silent"))`, "true")
		take(p, "ui-draining", 540)
	})
}

// publish publishes messages of several types until the test ends, at a varying rate.
func publish(t *testing.T, url string) {
	ctx, stop := context.WithCancel(t.Context())
	b, err := fencepost.Open(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	p, err := queue.NewPublisher(ctx, b.Queue, queue.PublisherOptions{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for second := 0.0; ctx.Err() == nil; second += 0.2 {
			var msgs []queue.Message
			for i, typ := range []string{"audit.eu", "audit.us", "invoices", "orders", "payments", "returns", "shipments"} {
				rate := []float64{60, 40, 90, 200, 120, 8, 50}[i] * (1 + 0.5*math.Sin(second/7+float64(i)))
				for range int(rate * 0.2) {
					msgs = append(msgs, queue.Message{Type: typ, Payload: fmt.Appendf(nil, `{"id":%d,"note":%q}`, i, strings.Repeat("x", 60))})
				}
			}
			p.PublishAll(ctx, msgs)
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	t.Cleanup(func() {
		stop()
		<-done
		p.Close(context.Background())
		b.Close(context.Background())
	})
}
