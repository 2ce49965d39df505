package inference

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"regent/ledger"
)

// callView is a call as its owner sees it.
type callView struct {
	ID              string        `json:"id"`
	ClientRequestID string        `json:"client_request_id,omitempty"`
	State           ledger.State  `json:"state"`
	Model           string        `json:"model"`
	Protocol        string        `json:"protocol"`
	Stream          bool          `json:"stream"`
	CreatedAt       time.Time     `json:"created_at"`
	EndedAt         *time.Time    `json:"ended_at"`
	DecisionID      string        `json:"decision_id"`
	Attempts        []attemptView `json:"attempts"`
	Usage           *usageView    `json:"usage"`
	Charge          chargeView    `json:"charge"`
}

type attemptView struct {
	Source    string     `json:"source"`
	Provider  string     `json:"provider"`
	Outcome   string     `json:"outcome"`
	Reason    string     `json:"reason,omitempty"`
	Status    int        `json:"status,omitempty"`
	StartedAt time.Time  `json:"started_at"`
	EndedAt   *time.Time `json:"ended_at"`
}

// usageView is null where no attempt's usage is known. Units are there even if none was used.
type usageView struct {
	ledger.Usage
	Units map[string]int64 `json:"units"`
}

// chargeView is what the call was charged over all its attempts.
type chargeView struct {
	USD          string `json:"usd"`
	Credits      string `json:"credits"`
	Estimated    bool   `json:"estimated"`
	UnknownUsage bool   `json:"unknown_usage"`
	Overage      bool   `json:"overage"`
}

func viewCall(report ledger.CallReport) callView {
	view := callView{
		ID: report.ID.String(), ClientRequestID: report.ClientRequestID, State: report.State, Model: report.Model, Protocol: report.Protocol,
		Stream: report.Stream, CreatedAt: report.CreatedAt, EndedAt: orNull(report.EndedAt), DecisionID: report.ID.String(),
		Attempts: []attemptView{},
	}
	if view.ClientRequestID == "" {
		view.ClientRequestID = report.IdempotencyKey
	}
	var charge ledger.Charge
	for _, attempt := range report.Attempts {
		outcome := attempt.Outcome
		if outcome.Result == "" {
			outcome.Result = "running"
		}
		view.Attempts = append(view.Attempts, attemptView{
			Source: attempt.Source, Provider: attempt.Provider, Outcome: outcome.Result, Reason: outcome.Reason, Status: outcome.Status,
			StartedAt: attempt.StartedAt, EndedAt: orNull(attempt.EndedAt),
		})
		if attempt.Usage != nil {
			view.Usage = &usageView{Usage: *attempt.Usage, Units: map[string]int64{}}
			maps.Copy(view.Usage.Units, attempt.Usage.Units)
		}
		charge.NanoUSD += attempt.Charge.NanoUSD
		charge.NanoCredits += attempt.Charge.NanoCredits
		view.Charge.Estimated = view.Charge.Estimated || attempt.Charge.Estimated
		view.Charge.UnknownUsage = view.Charge.UnknownUsage || attempt.Charge.UnknownUsage
		view.Charge.Overage = view.Charge.Overage || attempt.Charge.Overage
	}
	view.Charge.USD, view.Charge.Credits = ledger.FormatUSD(charge.NanoUSD), ledger.FormatCredits(charge.NanoCredits)
	return view
}

func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// request shows one call of the caller's; anybody else's looks like none.
func (i *Inference) request(x *exchange) {
	id, err := uuid.Parse(pathParameter(x.r, "id"))
	if err != nil {
		x.fail(requestNotFound)
		return
	}
	report, err := i.Ledger.Store().Call(x.r.Context(), id)
	switch {
	case err != nil:
		x.fail(describeRead(err))
	case report.Owner != x.token.User.ID:
		x.fail(requestNotFound)
	default:
		x.reply(viewCall(report))
	}
}

const (
	// requestsDefault and requestsMax bound a list of calls.
	requestsDefault = 20
	requestsMax     = 100 // a page that a person can still read
)

// requests lists the caller's recent calls, newest first, all or by the client's own request id.
func (i *Inference) requests(x *exchange) {
	query := ledger.CallQuery{Owner: x.token.User.ID, Limit: requestsDefault}
	parameters, err := url.ParseQuery(x.r.URL.RawQuery)
	if err != nil {
		x.fail(invalid("the query cannot be read"))
		return
	}
	for name, values := range parameters {
		switch name {
		case "client_request_id":
			if !clientID.MatchString(values[0]) {
				x.fail(invalid("client_request_id must match " + clientID.String()))
				return
			}
			query.ClientRequestID = values[0]
		case "limit":
			n, err := strconv.Atoi(values[0])
			if err != nil || n < 1 || n > requestsMax {
				x.fail(invalid("limit must be within 1 and 100"))
				return
			}
			query.Limit = n
		default:
			x.fail(invalid("unknown parameter " + strconv.Quote(clip(name))))
			return
		}
	}
	reports, err := i.Ledger.Store().Calls(x.r.Context(), query)
	if err != nil {
		x.fail(describeRead(err))
		return
	}
	views := []callView{}
	for _, report := range reports {
		views = append(views, viewCall(report))
	}
	x.reply(map[string]any{"requests": views})
}

// accountView is how one of the caller's accounts stands towards one limit, in exact decimals of its unit.
type accountView struct {
	Account string      `json:"account"`
	Unit    ledger.Unit `json:"unit"`
	Window  string      `json:"window"`
	Limit   string      `json:"limit"`
	Used    string      `json:"used"`
	Held    string      `json:"held"`
	Left    string      `json:"left"`
	// RecoversAt is when what was used is forgotten; null if nothing was.
	RecoversAt *time.Time `json:"recovers_at"`
}

// usage shows the caller's own accounts, what runs under the token if that is limited, and a task's if the request names one.
func (i *Inference) usage(x *exchange) {
	task, err := clientHeader(x.r, taskHeader)
	if err != nil {
		x.fail(describe(err, false))
		return
	}
	var claims []ledger.Claim
	for _, scope := range slices.Concat(x.catalogue.Scopes(x.token.User, x.identity(), task), x.token.Scopes()) {
		claims = append(claims, scope.Claims()...)
	}
	balances, err := i.Ledger.Read(x.r.Context(), claims)
	if err != nil {
		x.fail(describeRead(err))
		return
	}
	accounts := []accountView{}
	for _, b := range balances {
		unit := b.Account.Unit
		accounts = append(accounts, accountView{
			Account: b.Account.String(), Unit: unit, Window: b.Limit.Window.String(),
			Limit: ledger.FormatAmount(unit, b.Limit.Max), Used: ledger.FormatAmount(unit, b.Used),
			Held: ledger.FormatAmount(unit, b.Held), Left: ledger.FormatAmount(unit, b.Left), RecoversAt: orNull(b.RecoversAt),
		})
	}
	x.reply(map[string]any{"accounts": accounts})
}

// describeRead is the answer to a failed read: the store's own text stays here.
func describeRead(err error) answer {
	if a := describe(err, false); a.status != http.StatusInternalServerError {
		return a
	}
	return storeDown
}
