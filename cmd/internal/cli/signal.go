package cli

import (
	"os"
	"os/signal"
	"syscall"
)

// OnSignals calls first on the first SIGINT or SIGTERM and second on the next one. After done, signals are ignored: the program is
// about to exit and may have reported its result, so a signal must no longer change its exit code.
func OnSignals(first, second func()) (done func()) {
	ended := make(chan struct{})
	c := make(chan os.Signal, 2)
	signal.Notify(c, os.Interrupt, syscall.SIGTERM)
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		for _, act := range []func(){first, second} {
			select {
			case <-c:
				act()
			case <-ended:
				return
			}
		}
	}()
	return func() {
		close(ended)
		<-finished
	}
}
