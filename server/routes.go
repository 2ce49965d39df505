package server

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/julienschmidt/httprouter"

	"regent/server/inference"
)

// routes are all endpoints of the program.
func (s *Server) routes() http.Handler {
	router := httprouter.New()
	router.RedirectTrailingSlash = false // a redirected POST loses its body in some clients
	router.RedirectFixedPath = false
	router.NotFound = http.HandlerFunc(inference.NotFound)
	router.MethodNotAllowed = http.HandlerFunc(inference.MethodNotAllowed)
	router.PanicHandler = s.panicked
	for path, ready := range map[string]bool{"/healthz": false, "/readyz": true} {
		router.HandlerFunc(http.MethodGet, path, s.serveHealth(ready))
		router.HandlerFunc(http.MethodHead, path, s.serveHealth(ready))
	}
	router.Handler(http.MethodGet, "/metrics", s.metrics.Handler())
	router.Handler(http.MethodHead, "/metrics", s.metrics.Handler())
	s.inference.Register(router)
	return router
}

// panicked answers for a handler that has panicked. The panic's value may hold anything, a secret included, so that its type alone
// is logged.
func (s *Server) panicked(w http.ResponseWriter, r *http.Request, failure any) {
	if failure == http.ErrAbortHandler {
		panic(failure)
	}
	s.config.Log.Error("a handler panicked", "path", r.URL.Path, "type", fmt.Sprintf("%T", failure))
	inference.Internal(w, r)
}

// serveHealth answers with the state of each component. /healthz says that the process lives, and is 200 as long as it can say
// so; /readyz says whether calls would be served.
func (s *Server) serveHealth(ready bool) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		report := s.report()
		status := http.StatusOK
		if ready && report.Status == failed {
			status = http.StatusServiceUnavailable
		}
		body, err := json.Marshal(report)
		if err != nil {
			http.Error(w, "health cannot be shown", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = w.Write(append(body, '\n')) // a prober that has gone needs no answer
	}
}
