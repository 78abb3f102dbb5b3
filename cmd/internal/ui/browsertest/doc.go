// Package browsertest looks at the pages of fencepost ui with a real browser, Chromium without a window. It is a module of its own, so that
// what drives the browser never reaches users.
//
// The browser is chromium-headless-shell of Debian, or any Chromium in PATH. Where there is none the tests are skipped, unless
// FENCEPOST_TEST_REQUIRE_BROWSER is set.
package browsertest
