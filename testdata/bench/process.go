package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is one program of the benchmark, running.
type process struct {
	name   string
	url    string
	log    string // the file of its standard error
	stdin  io.WriteCloser
	stdout *bufio.Reader
	cmd    *exec.Cmd
}

// start runs a program and waits until it says where it listens, in a line "listen URL".
func start(ctx context.Context, folder, name string, env []string, program string, args ...string) (_ *process, err error) {
	p := &process{name: name, log: logFile(folder, name), cmd: exec.CommandContext(ctx, program, args...)}
	p.cmd.Env = append([]string{"HOME=" + folder, "TMPDIR=" + folder}, env...)
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = 5 * time.Second // for its last settlements; then it is killed
	stderr, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = stderr.Close() }() // the child has its own
	p.cmd.Stderr = stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.stdout = bufio.NewReader(stdout)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	for {
		line, err := p.stdout.ReadString('\n')
		if err != nil {
			p.stop()
			return nil, fmt.Errorf("%s did not start: %s", name, p.said())
		}
		if fields := strings.Fields(line); len(fields) == 2 && fields[0] == "listen" {
			p.url = fields[1]
			return p, nil
		}
	}
}

// logFile is where the processes of a name write their logs, one after the other.
func logFile(folder, name string) string { return filepath.Join(folder, name+".log") }

// stop ends the process and waits for it.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	timer := time.AfterFunc(p.cmd.WaitDelay, func() { _ = p.cmd.Process.Kill() })
	defer timer.Stop()
	_ = p.cmd.Wait() // how it ended was either asked for or is in its log
}

// said is the end of what the process has logged.
func (p *process) said() string {
	text, _ := os.ReadFile(p.log) // no log, nothing said
	var wrong []string
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, "level=INFO") {
			wrong = append(wrong, line)
		}
	}
	said := strings.Join(wrong, "")
	const most = 2000
	return strings.TrimSpace(said[max(0, len(said)-most):])
}

// ask sends a line to a process of this program and returns the line that it answers.
func (p *process) ask(command string) (string, error) {
	if _, err := io.WriteString(p.stdin, command+"\n"); err != nil {
		return "", err
	}
	line, err := p.stdout.ReadString('\n')
	return strings.TrimSpace(line), err
}

// tell has a process of this program do something.
func (p *process) tell(command, file string) error {
	answer, err := p.ask(command + " " + file)
	if err == nil && answer != obeyed {
		err = errors.New(answer)
	}
	return err
}

// count asks a process of this program for two numbers.
func (p *process) count(command string) (a, b float64, err error) {
	answer, err := p.ask(command)
	if err == nil {
		_, err = fmt.Sscan(answer, &a, &b)
	}
	return a, b, err
}

// tick is the unit in which /proc counts time: USER_HZ is 100 on every Linux.
const tick = 10 * time.Millisecond

// cpu is the processor time that the process has used so far.
func (p *process) cpu() time.Duration { return cpuOf(p.cmd.Process.Pid) }

func cpuOf(pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	return ticks(fields[11]) + ticks(fields[12]) // user and system
}

func ticks(field string) time.Duration {
	n, _ := strconv.ParseInt(field, 10, 64) // the kernel writes it
	return time.Duration(n) * tick
}

// rss is the process's resident memory in bytes.
func (p *process) rss() int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	kib, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64) // the kernel writes it
	return kib << 10
}

// settle waits until the process has done what it still had to do, so that it does not fall to the next target.
func (p *process) settle() {
	const look, most = 100 * time.Millisecond, 30 // 3 s in all
	for range most {
		before := p.cpu()
		time.Sleep(look)
		if p.cpu()-before <= tick {
			return
		}
	}
}

// machineBusy is the processor time that the whole machine has used so far, on all processors.
func machineBusy() (busy time.Duration) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line)
	for _, i := range []int{1, 2, 3, 6, 7, 8} { // user nice system irq softirq steal
		busy += ticks(fields[i])
	}
	return busy
}

// ownCPU is the processor time that this process has used so far.
func ownCPU() time.Duration {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
