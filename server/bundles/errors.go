package bundles

import (
	"errors"
	"fmt"
	"net/http"
)

// What can be wrong with a source of a bundle.
var (
	// ErrTooLarge: it is more than policy takes.
	ErrTooLarge = errors.New("it is too large")
	// ErrNotTarball: it is no tar.gz, or not all of one.
	ErrNotTarball = errors.New("it is no tar.gz")
	// ErrEntry: an entry of a tarball, or a file of a folder, cannot be part of a bundle.
	ErrEntry = errors.New("it cannot be part of a bundle")
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
