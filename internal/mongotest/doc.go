// Package mongotest provides tests with a real MongoDB, or a MongoDB-compatible server, without manual set-up.
//
// # Which server
//
// The first available of these:
//
//  1. The one that FENCEPOST_TEST_MONGODB_URI names. `go run ./internal/mongotest/withserver -- go test ./...` starts
//     one server for a whole run and sets it.
//  2. A container of the image FENCEPOST_TEST_MONGO_IMAGE, started by testcontainers-go; when that is not set, of
//     mongo:8 as a replica set of one, so that majority acknowledgements are real.
//  3. If mongo:8 can be neither found nor pulled, a container of the image that integration/mongo-image/build.sh
//     makes from Debian's packages and the Go module proxy (FerretDB in front of PostgreSQL).
//  4. Without Docker, as root on Debian: the same file tree in a chroot.
//
// Existing images of step 3 and trees of step 4 are used. They are *built* (minutes, with apt-get and debootstrap)
// only on an explicit request for a server: by withserver, which `make test` uses, or by
// FENCEPOST_TEST_REQUIRE_MONGODB=1. A bare `go test ./...` never installs anything.
//
// When no server is available, tests that need one are skipped after one loud line per process, or fail if
// FENCEPOST_TEST_REQUIRE_MONGODB=1. `go test` with package patterns shows the output of failed packages only, so the
// line is certain to be seen from withserver and with -v.
//
// # Which function
//
//	URI(t)        the shared server: one per test process, started by the first call
//	Database(t)   a fresh database on it, dropped when the test ends, as a driver handle
//	Fresh(t)      the same, with the URI that has the database in its path, as the product wants it
//	NewServer(t)  a private server for the test, to pause, kill and restart
//	Docker(t)     the Docker daemon itself, for tests of images
//
// # Cleanup
//
// Databases and private servers end with their test. The shared server has no such moment, because packages need not
// have a TestMain. So each server has a small guard process (see guard) that waits for the end of the test process,
// however it ends, and then removes the server. If the guard died as well, the next process that starts a server
// removes the old one: every container is labelled with its owner (see owner) and is removed only when that owner is
// certainly gone. Containers without that label are never touched.
package mongotest
