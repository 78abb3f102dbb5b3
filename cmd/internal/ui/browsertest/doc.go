// Package browsertest runs fencepost ui in a real browser.
package browsertest
