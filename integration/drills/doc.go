// Package drills plays operators' actions on the database, the files and the hosts (disasters), follows docs/operations.md
// (runbooks), and checks one guarantee after every step:
//
//	A confirmed message is in the file exactly once, or still in the queue, or a dead letter, or a command said that it is missing.
//
// An estate is one database, one directory, and real programs that publish and drain one type. Disasters happen to it one after another,
// with traffic between them. The simulated operator knows only the output of the programs and docs/operations.md: it handles a refused file
// as the error advises, and advice that makes matters worse breaks the guarantee.
//
// TestRunbooks plays each disaster in the documented sequence. TestRandomDisasters plays random sequences: by default a few fixed seeds,
// and as many as `make drills` requests. docs/drills.md has the results.
package drills
