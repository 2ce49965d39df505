package pgtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a child that ends with this process, where the system can see to that.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how; valid after done
}

// run starts a program as the owner of the folder, with its output in log.
func run(program string, args []string, folder *folder, log *os.File) (*process, error) {
	cmd := exec.Command(program, args...)
	cmd.Dir = folder.path
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"} // nothing of PostgreSQL's own variables
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = attributes()
	cmd.SysProcAttr.Credential = folder.owner
	cmd.SysProcAttr.Setpgid = true // an interrupt from the terminal is for the tests, which then stop the server
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// A child's end with its parent is tied to the thread that started it, so this one must not end before.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	return p, <-started
}

// stop sends a signal and waits for the end. An end by that signal is no error.
func (p *process) stop(signal syscall.Signal) error {
	select {
	case <-p.done:
		return nil
	default:
	}
	_ = p.cmd.Process.Signal(signal) // it may have ended by itself
	select {
	case <-p.done:
		return nil
	case <-time.After(stopTimeout):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("it did not end within %v of signal %v, and was killed", stopTimeout, signal)
	}
}

// errMissing says that there is no PostgreSQL here.
var errMissing = fmt.Errorf("PostgreSQL is not installed, neither in PATH nor below %s: `make postgres` installs it where it can", debian)

// debian is where Debian's packages have the programs, one folder a version.
const debian = "/usr/lib/postgresql"

// binaries finds the folder of PostgreSQL's programs: in PATH, else the newest of Debian's.
func binaries() (string, error) {
	var folders []string
	if path, err := exec.LookPath("initdb"); err == nil {
		folders = append(folders, filepath.Dir(path))
	}
	installed, err := filepath.Glob(debian + "/*/bin")
	if err != nil {
		return "", err
	}
	slices.SortFunc(installed, func(a, b string) int { return version(b) - version(a) })
	for _, folder := range append(folders, installed...) {
		if executable(filepath.Join(folder, "initdb")) && executable(filepath.Join(folder, "postgres")) {
			return folder, nil
		}
	}
	return "", errMissing
}

// version is that of a folder of Debian's.
func version(bin string) int {
	n, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(bin, debian+"/"), "/bin")) // 0 if it is none
	return n
}

func executable(path string) bool {
	_, err := exec.LookPath(path)
	return err == nil
}
