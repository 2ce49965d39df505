package server

import (
	"net/http"
	"strings"
	"testing"
)

// What cannot be an id of a client's is no question for the ledger.
func TestListsOfRequestsAreAskedForByIDs(t *testing.T) {
	g := startGateway(t, nil)
	const pattern = "client_request_id must match ^[A-Za-z0-9]"
	for query, want := range map[string]struct {
		status int
		says   string
	}{
		"":                                              {200, `{"requests":[]}`},
		"client_request_id=once-1":                      {200, `{"requests":[]}`},
		"client_request_id=a%2Fb%3D1":                   {200, `{"requests":[]}`},
		"client_request_id=":                            {400, pattern},
		"client_request_id=a%00":                        {400, pattern},
		"client_request_id=%ff":                         {400, pattern},
		"client_request_id=%c3%28":                      {400, pattern},
		"client_request_id=%C3%BC":                      {400, pattern},
		"client_request_id=a%0A":                        {400, pattern},
		"client_request_id=-a":                          {400, pattern},
		"client_request_id=" + strings.Repeat("x", 129): {400, pattern},
		"client_request_id=%zz":                         {400, "the query cannot be read"},
		"client_request_id=a;b":                         {400, "the query cannot be read"},
		"limit=0":                                       {400, "limit must be within 1 and 100"},
		"%ff=1":                                         {400, "unknown parameter"},
	} {
		r := g.request(t, http.MethodGet, "/requests", nil)
		r.URL.RawQuery = query
		a := g.do(t, r)
		if a.status != want.status || !strings.Contains(a.body, want.says) || want.status != 200 && a.code() != "invalid_request" {
			t.Errorf("%s: got %d %s, want %d and %q", query, a.status, a.body, want.status, want.says)
		}
	}
}
