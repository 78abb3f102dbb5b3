// Package browsertest tests the pages of fencepost ui with a real browser, headless Chromium. It is a separate module, so that its
// dependencies never reach users.
//
// The browser is chromium-headless-shell of Debian, or any Chromium in PATH. Without one the tests are skipped, unless
// FENCEPOST_TEST_REQUIRE_BROWSER is set.
package browsertest
