// Package ptytest provides terminals for tests, on Linux.
package ptytest
