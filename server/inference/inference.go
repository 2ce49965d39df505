// Package inference is the data plane: the endpoints that AI clients call with a gwi_ token.
//
// A handler says who asks and what is asked, hands the call to the router, and relays the answer. It refuses by itself only what is no call,
// and what nobody could judge or bound: tools of a provider's that no usage tells of, and what it keeps for its account. Whether a call may
// be served is the router's decision.
package inference

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/julienschmidt/httprouter"

	"regent/engine"
	"regent/engine/policy"
	"regent/ledger"
	"regent/server/catalog"
)

// Root is the path below which Anthropic's clients find v1; Base is the one below which OpenAI's find their endpoints.
const (
	Root = "/api/inference"
	Base = Root + "/v1"
)

// requestIDHeaders are on every answer that has a body: the id of the call, where there was one, under Regent's own name and those that the vendors'
// SDKs read.
var requestIDHeaders = []string{"X-Regent-Request-Id", "X-Request-Id", "Request-Id"}

// Config is what the data plane is made of. All fields but WriteStall are required.
type Config struct {
	// Catalogue is the catalogue that counts now.
	Catalogue func() *catalog.Catalogue
	Cooling   *catalog.Cooling
	Router    *engine.Router
	Ledger    *ledger.Ledger
	Policy    *policy.Engine
	// CountError counts the errors that clients are told, by their codes.
	CountError func(code string)
	Now        func() time.Time
	Log        *slog.Logger
	// WriteStall is how long a client may take for one write: one that stopped reading holds money and memory. Defaults to 2 min.
	WriteStall time.Duration
}

// writeStall is the default: longer than any line that is still of use takes.
const writeStall = 2 * time.Minute

// Inference serves the data plane.
type Inference struct {
	Config
	mu       sync.Mutex // guards draining, and running against it
	draining bool
	running  sync.WaitGroup
	bodies   bodies
	// stopping ends when calls that still run are to be ended.
	stopping context.Context
	stop     context.CancelFunc
}

// New makes the data plane.
func New(config Config) *Inference {
	if config.WriteStall == 0 {
		config.WriteStall = writeStall
	}
	i := &Inference{Config: config}
	i.stopping, i.stop = context.WithCancel(context.Background())
	return i
}

// Register adds the endpoints to a router.
func (i *Inference) Register(router *httprouter.Router) {
	for path, p := range map[string]*protocol{
		"/chat/completions": chatProtocol, "/responses": responsesProtocol, "/responses/compact": compactProtocol,
		"/embeddings": embeddingsProtocol, "/messages": messagesProtocol,
	} {
		router.Handler(http.MethodPost, Base+path, i.guard(p.form, i.receive(p, i.call)))
	}
	router.Handler(http.MethodPost, Base+"/messages/count_tokens", i.guard(countProtocol.form, i.receive(countProtocol, i.countTokens)))
	for path, handler := range map[string]func(*exchange){
		"/models": i.models, "/models/*id": i.model, "/usage": i.usage, "/requests": i.requests, "/requests/:id": i.request,
	} {
		router.Handler(http.MethodGet, Base+path, i.guard(openAIForm, handler))
		router.Handler(http.MethodHead, Base+path, i.guard(openAIForm, handler))
	}
	router.HandlerFunc(http.MethodHead, Root, func(w http.ResponseWriter, _ *http.Request) { // Claude Code looks whether anybody is there
		w.WriteHeader(http.StatusNoContent)
	})
}

// Drain refuses new calls from now on.
func (i *Inference) Drain() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.draining = true
}

// Wait waits until no call runs any more.
func (i *Inference) Wait() { i.running.Wait() }

// Stop ends the calls that still run, as failures of this server in their own protocol.
func (i *Inference) Stop() { i.stop() }

// begin counts a call in, unless the server is draining.
func (i *Inference) begin() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.draining {
		return false
	}
	i.running.Add(1)
	return true
}

// exchange is one authenticated request and its response.
type exchange struct {
	w         http.ResponseWriter
	r         *http.Request
	id        uuid.UUID
	catalogue *catalog.Catalogue
	token     *catalog.Token
	form      *form         // in which failures are told
	stall     time.Duration // for one write
	// abort tells the client of a panic; a handler that has begun to answer replaces it.
	abort func(answer)
	// count counts an error that the client is told.
	count func(code string)
}

// fail answers with an error.
func (x *exchange) fail(a answer) {
	x.count(a.code)
	if x.mayWrite() == nil {
		a.write(x.w, x.form, x.id.String())
	}
}

// mayWrite gives the client its time for the next write. An error says that the connection is of no use any more.
func (x *exchange) mayWrite() error { return giveTime(http.NewResponseController(x.w), x.stall) }

// giveTime lets the next write of a response take so long, where its connection can tell.
func giveTime(control *http.ResponseController, stall time.Duration) error {
	if err := control.SetWriteDeadline(time.Now().Add(stall)); !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// reply answers with a JSON document.
func (x *exchange) reply(document any) {
	body, err := json.Marshal(document)
	if err != nil {
		x.fail(internal)
		return
	}
	x.w.Header().Set("Content-Type", "application/json")
	if x.mayWrite() == nil {
		_, _ = x.w.Write(append(body, '\n')) // a client that has gone needs no answer
	}
}

// guard wraps a handler: it names the request, sees that inference is on, and says whose token it is. A panic becomes an error
// without its text. Failures are told in a form; a path that several kinds of clients share tells them by the headers of Anthropic's.
func (i *Inference) guard(form *form, handler func(*exchange)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := &exchange{
			w: w, r: r, id: uuid.Must(uuid.NewV7()), catalogue: i.Catalogue(), form: form, stall: i.WriteStall, count: i.CountError,
		}
		if r.Header.Get(anthropicVersion) != "" && r.Method != http.MethodPost {
			x.form = anthropicForm
		}
		x.abort = x.fail
		nameRequest(w, x.id.String())
		defer func() {
			if failure := recover(); failure != nil {
				if failure == http.ErrAbortHandler {
					panic(failure)
				}
				// The panic's value may hold anything, a prompt included, so that its type alone is logged.
				i.Log.Error("a handler panicked", "request", x.id, "path", r.URL.Path, "type", fmt.Sprintf("%T", failure))
				x.abort(internal)
			}
		}()
		if !x.catalogue.InferenceEnabled {
			x.fail(switchedOff)
			return
		}
		token, refusal := authenticate(x.catalogue, r)
		if refusal != nil {
			x.fail(*refusal)
			return
		}
		x.token = token
		handler(x)
	})
}

// authenticate finds the caller by the bearer token or the x-api-key header.
func authenticate(catalogue *catalog.Catalogue, r *http.Request) (*catalog.Token, *answer) {
	bearer := ""
	if scheme, credential, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		bearer = strings.TrimSpace(credential)
	}
	key := r.Header.Get("X-Api-Key")
	if len(r.Header.Values("Authorization")) > 1 || len(r.Header.Values("X-Api-Key")) > 1 {
		return nil, &twoTokens
	}
	if bearer != "" && key != "" && bearer != key {
		return nil, &twoTokens
	}
	if bearer == "" {
		bearer = key
	}
	if token := catalogue.Authenticate(bearer); catalog.ValidToken(bearer) && token != nil {
		return token, nil
	}
	return nil, &unauthenticated
}

// NotFound and MethodNotAllowed answer for paths and methods that do not exist, cheaply and without authentication.
func NotFound(w http.ResponseWriter, r *http.Request) { writePlain(w, r, pathNotFound) }

// Internal answers for a handler that has failed.
func Internal(w http.ResponseWriter, r *http.Request) { writePlain(w, r, internal) }

// MethodNotAllowed answers with the Allow header that the router has set.
func MethodNotAllowed(w http.ResponseWriter, r *http.Request) { writePlain(w, r, methodNotAllowed) }

// writePlain tells a failure where no handler knows the form: to Anthropic's clients, and below its endpoints, in Anthropic's.
func writePlain(w http.ResponseWriter, r *http.Request, a answer) {
	id := uuid.Must(uuid.NewV7()).String()
	nameRequest(w, id)
	form := openAIForm
	if r.Header.Get(anthropicVersion) != "" || strings.HasPrefix(r.URL.Path, Base+"/messages") {
		form = anthropicForm
	}
	a.write(w, form, id)
}

func nameRequest(w http.ResponseWriter, id string) {
	for _, name := range requestIDHeaders {
		w.Header().Set(name, id)
	}
}

// clientID is what a client may send as an id of its own: printable, and short enough for a log.
var clientID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}$`)

// clientHeader reads an optional id of the client's.
func clientHeader(r *http.Request, name string) (string, error) {
	id := r.Header.Get(name)
	if id != "" && !clientID.MatchString(id) {
		return "", answerError(invalid(name + " must match " + clientID.String()))
	}
	return id, nil
}

// pathParameter reads a parameter of the route's path.
func pathParameter(r *http.Request, name string) string {
	return httprouter.ParamsFromContext(r.Context()).ByName(name)
}

// identity is who asks, as policy sees it.
func (x *exchange) identity() policy.Identity {
	user := x.token.User
	return policy.Identity{User: &user.ID, Groups: user.Groups, Tenant: user.Tenant}
}
