// Package drills plays what operators do to the database, the files and the hosts (disasters), does what docs/operations.md says then
// (runbooks), and checks one promise after every step:
//
//	A confirmed message is in the file exactly once, or still in the queue, or a dead letter, or a command said that it is missing.
//
// An estate is one database, one directory, and real programs that publish and drain one type. Disasters happen to it one after another;
// between them there is traffic. The operator knows nothing but what the programs print and what docs/operations.md says: a refused file is
// handled as the error tells, and advice that makes it worse breaks the promise.
//
// TestRunbooks plays each disaster in the sequence in which it is described, TestRandomDisasters plays random sequences: a few fixed seeds
// as a rule, and as many as `make drills` asks for. What that has shown is in docs/drills.md.
package drills
