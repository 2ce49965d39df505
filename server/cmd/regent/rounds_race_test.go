//go:build race

package main

// crashRounds is how often TestCrashStorm kills the program. The child is as slow as its test under the race detector, which two
// rounds give what it looks for.
const crashRounds = 2

// pairRounds is how often TestTwoProcessesStorm kills one of two.
const pairRounds = 2
