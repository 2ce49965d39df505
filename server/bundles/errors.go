package bundles

import (
	"errors"
	"fmt"
	"net/http"

	"regent/engine/tarball"
)

// What can be wrong with a source of a bundle.
var (
	// ErrTooLarge: it is more than policy takes.
	ErrTooLarge = tarball.ErrTooLarge
	// ErrNotTarball: it is no tar.gz, or not all of one.
	ErrNotTarball = tarball.ErrNotTarball
	// ErrEntry: an entry of a tarball, or a file of a folder, cannot be part of a bundle.
	ErrEntry = tarball.ErrEntry
	// ErrUnsettled: it is being written.
	ErrUnsettled = errors.New("it is being written")
	// ErrSlow: it did not arrive in time.
	ErrSlow = errors.New("it takes too long")
	// ErrRedirect: a server sends elsewhere in a way that is not followed.
	ErrRedirect = errors.New("the server sends elsewhere")
	// ErrUnreachable: there is no connection, or none that may be trusted.
	ErrUnreachable = errors.New("there is no connection")
	// ErrNotUnderstood: what another side said is not what was asked for.
	ErrNotUnderstood = errors.New("the answer is not understood")
	// ErrImage: an image is not that of a bundle.
	ErrImage = errors.New("the image is none of a bundle")
)

// StatusError is an answer that is none.
type StatusError struct{ Code int }

func (e *StatusError) Error() string {
	return fmt.Sprintf("the answer is %d %s", e.Code, http.StatusText(e.Code))
}

// remedy is what to do about it.
func (e *StatusError) remedy() string {
	switch {
	case e.Code == http.StatusUnauthorized || e.Code == http.StatusForbidden:
		return "see whether the credential is right, and may read it"
	case e.Code == http.StatusNotFound:
		return "see whether it is there, and may be seen"
	case e.Code >= http.StatusInternalServerError || e.Code == http.StatusTooManyRequests:
		return "the other side is at fault; it is asked again"
	}
	return "see whether the address is right"
}

// Error is why a bundle could not be had.
type Error struct {
	// Where it was looked for, without anything secret. Empty within the package, before it is known.
	Where string
	// Err is what was wrong.
	Err error
	// Remedy is what to do.
	Remedy string
}

func (e *Error) Error() string {
	text := e.Err.Error()
	if e.Where != "" {
		text = e.Where + ": " + text
	}
	return text + ": " + e.Remedy
}

// Unwrap is what was wrong.
func (e *Error) Unwrap() error { return e.Err }

// wrong is an error of a kind, with what is particular to it.
func wrong(kind error, remedy, format string, args ...any) *Error {
	return &Error{Err: fmt.Errorf("%w: %s", kind, fmt.Sprintf(format, args...)), Remedy: remedy}
}

// own is an error of this package, or one of package tarball with what to do about it. It is nil if err is neither.
func own(err error) *Error {
	var placed *Error
	switch {
	case errors.As(err, &placed):
		return placed
	case errors.Is(err, ErrNotTarball):
		return &Error{Err: err, Remedy: "make it by `regent policy build` or `tar czf`"}
	case errors.Is(err, ErrEntry):
		return &Error{Err: err, Remedy: "let it hold regular files, each once, and pack them from within their folder"}
	case errors.Is(err, ErrTooLarge):
		return &Error{Err: err, Remedy: "move data out of it, and what is no policy"}
	}
	return nil
}
