//go:build !race

package main

// crashRounds is how often TestCrashStorm kills the program.
const crashRounds = 20

// pairRounds is how often TestTwoProcessesStorm kills one of two.
const pairRounds = 20
