// Package ptytest has terminals for tests, on Linux.
package ptytest
