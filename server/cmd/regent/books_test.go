package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"regent/ledger"
	"regent/ledger/sqldb"
)

// program runs the program on a data folder.
func program(t *testing.T, folder string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	env := func(name string) (string, bool) {
		return map[string]string{"REGENT_DATA": folder, "REGENT_DEMO_TOKEN": tokenOf("demo")}[name], name == "REGENT_DATA" || name == "REGENT_DEMO_TOKEN"
	}
	code = run(args, env, time.Now, &out, &errs)
	return code, out.String(), errs.String()
}

// bookkeeping makes a database with a charge in two accounts, and returns its folder.
func bookkeeping(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	store, err := sqldb.Open(t.Context(), sqldb.Config{Path: filepath.Join(folder, "regent.db")})
	if err != nil {
		t.Fatal(err)
	}
	l, err := ledger.Open(ledger.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	err = l.Post(t.Context(), ledger.Posting{Accounts: aliceAccounts, Usage: ledger.Usage{Output: 5}, NanoUSD: 7_000})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return folder
}

// tamper changes a database behind the ledger's back.
func tamper(t *testing.T, folder, statement string) {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(folder, "regent.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	result, err := db.Exec(statement)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		t.Fatalf("%s: %d rows, %v", statement, n, err)
	}
}

func TestVerifyPrintsEachDifference(t *testing.T) {
	for statement, want := range map[string]string{
		`UPDATE ledger_account SET used = used + 1 WHERE account = 'user/alice/tokens'`: "used of user/alice/tokens: want 5, got 6\n",
		`UPDATE ledger_charge SET at = at - 1 WHERE account = 'user/alice/usd'`:         "posting of user/alice/usd at 7000: want 7000 charged at ",
		`DELETE FROM ledger_charge WHERE account = 'user/alice/usd'`:                    "posting of the newest of user/alice/usd: want 7000, got 0\n",
		`UPDATE ledger_account SET floor = 2 WHERE account = 'user/alice/tokens'`:       "floor of user/alice/tokens: want 0, got 2\n",
		`UPDATE ledger_record SET body = json_set(body, '$.tokens', 4)`:                 "want 5, got 4\n",
		`UPDATE ledger_record SET number = 2`:                                           "numbering of the beginning of stream ",
	} {
		folder := bookkeeping(t)
		if code, stdout, stderr := program(t, folder, "ledger", "verify"); code != 0 || stderr != "" || !strings.HasSuffix(stdout, ": no difference\n") {
			t.Fatalf("true books: exit %d, %s%s", code, stdout, stderr)
		}
		tamper(t, folder, statement)
		code, stdout, stderr := program(t, folder, "ledger", "verify")
		if code != exitFailed || !strings.Contains(stdout, want) {
			t.Errorf("%s: exit %d, %s", statement, code, stdout)
		}
		if !strings.HasPrefix(stderr, "regent: the books differ from the journal in ") || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: %q", statement, stderr)
		}
		code, stdout, _ = program(t, folder, "ledger", "verify", "--json")
		var report ledger.Verification
		if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != exitFailed || len(report.Differences) == 0 || report.Records != 1 {
			t.Errorf("%s: exit %d, %v, %s", statement, code, err, stdout)
		}
	}
}

// TestAResetIsByThePersonWhoRunsIt: unless another is named.
func TestAResetIsByThePersonWhoRunsIt(t *testing.T) {
	folder := bookkeeping(t)
	who, err := person{}.name()
	if err != nil || who == "" {
		t.Fatalf("%q, %v", who, err)
	}
	if code, _, stderr := program(t, folder, "ledger", "reset", "user/alice", "--reason", "a test"); code != 0 {
		t.Fatal(stderr)
	}
	store, err := sqldb.Open(t.Context(), sqldb.Config{Path: filepath.Join(folder, "regent.db"), ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }() // it was only read
	records, err := store.Tail(t.Context(), 1)
	if err != nil || len(records) != 1 || records[0].Kind != ledger.ResetRecord {
		t.Fatalf("%+v, %v", records, err)
	}
	var body ledger.ResetBody
	if err := json.Unmarshal(records[0].Body, &body); err != nil {
		t.Fatal(err)
	}
	if body.Actor != who || body.Reason != "a test" || body.ID == uuid.Nil || len(body.Accounts) != 2 || body.Accounts[aliceAccounts[0]] == 0 {
		t.Errorf("%+v", body)
	}
}

func TestParseAge(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"90d": 90 * 24 * time.Hour, "800h": 800 * time.Hour, "1d": 24 * time.Hour,
		"999999999999d": ageMax, "2000000h": ageMax, "0d": 0, "-1d": 0, "d": 0, "": 0, "1.5d": 0, "90": 0, "99999999999999999999d": 0,
	} {
		got, err := parseAge(text)
		if got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
}

// TestAnInterruptedCommandFails: who verifies the ledger and is interrupted has no answer.
func TestAnInterruptedCommandFails(t *testing.T) {
	for _, test := range []struct {
		err    error
		code   int
		stderr string
	}{
		{nil, 0, ""},
		{fmt.Errorf("reading record 7: %w", context.Canceled), exitFailed, "regent: interrupted before the end\n"},
		{errors.New("it is broken"), exitFailed, "regent: it is broken\n"},
	} {
		var stderr strings.Builder
		if code := exitCode(&stderr, test.err); code != test.code || stderr.String() != test.stderr {
			t.Errorf("%v: exit %d, %q", test.err, code, stderr.String())
		}
	}
	folder := bookkeeping(t)
	var verification verifyCmd
	interrupted, interrupt := context.WithCancel(t.Context())
	interrupt()
	where := func(name string) (string, bool) {
		return map[string]string{"REGENT_DATA": folder}[name], name == "REGENT_DATA"
	}
	if err := verification.Run(interrupted, &environment{env: where, now: time.Now, stdout: io.Discard}); !errors.Is(err, context.Canceled) {
		t.Errorf("verifying was interrupted: %v", err)
	}
}
