package pgtest

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

const (
	// top is a short path: a unix socket's has at most 107 bytes.
	top    = "/tmp"
	prefix = "regent-pg-"
	// staleAge is how old a folder without an owner is before it is removed: a new one is not locked yet.
	staleAge = time.Minute
)

// folder is a cluster's folder: its data, its socket and its log. It is locked as long as this process lives, so that others
// see that it is in use.
type folder struct {
	path  string
	owner *syscall.Credential // nil: this process's user
	lock  *os.File
}

// newFolder makes a folder, after it removed those that killed processes left.
func newFolder() (*folder, error) {
	removeStale()
	path, err := os.MkdirTemp(top, prefix)
	if err != nil {
		return nil, err
	}
	f := &folder{path: path}
	if err := f.prepare(); err != nil {
		return nil, errors.Join(err, f.remove())
	}
	return f, nil
}

func (f *folder) prepare() (err error) {
	if f.lock, err = tryLock(f.path); err != nil {
		return err
	}
	if f.owner, err = serverUser(); err != nil || f.owner == nil {
		return err
	}
	if err := os.Chmod(f.path, 0o755); err != nil {
		return err
	}
	return os.Chown(f.path, int(f.owner.Uid), int(f.owner.Gid))
}

// serverUser is whom the server runs as: PostgreSQL refuses to run as root.
func serverUser() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	found, err := user.Lookup("postgres")
	if err != nil {
		if found, err = user.Lookup("nobody"); err != nil {
			return nil, err
		}
	}
	uid, err := strconv.ParseUint(found.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(found.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, err
}

func tryLock(path string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(path, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", file.Name(), err), file.Close())
	}
	return file, nil
}

// removeStale removes folders whose owners have ended. What it cannot remove belongs to somebody else.
func removeStale() {
	paths, err := filepath.Glob(filepath.Join(top, prefix+"*"))
	if err != nil {
		return
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil || time.Since(info.ModTime()) < staleAge {
			continue
		}
		if lock, err := tryLock(path); err == nil {
			_ = os.RemoveAll(path)
			_ = lock.Close()
		}
	}
}

func (f *folder) log() string { return filepath.Join(f.path, "log") }

// tail is the end of the log, for a failure's message.
func (f *folder) tail() string {
	const most = 4000
	text, err := os.ReadFile(f.log())
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-most):])
}

func (f *folder) remove() error {
	err := os.RemoveAll(f.path)
	if f.lock != nil {
		err = errors.Join(err, f.lock.Close())
	}
	return err
}
