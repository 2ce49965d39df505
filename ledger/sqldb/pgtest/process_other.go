//go:build !linux

package pgtest

import "syscall"

// attributes are empty: a server here ends when it finds its files removed, which the next cluster's start does.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
