//go:build !race

package main

// crashRounds is how often TestCrashStorm kills the program.
const crashRounds = 20
