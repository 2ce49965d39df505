package ledger

import (
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestUSDRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nano := rapid.Int64Range(0, (1<<52)*1000).Draw(t, "nano")
		if got, err := ParseUSD(FormatUSD(nano)); err != nil || got != nano {
			t.Fatalf("%d is written %s and read %d, %v", nano, FormatUSD(nano), got, err)
		}
	})
	for text, want := range map[string]string{"0": "0", "2.50": "2.5", "0.000000001": "0.000000001", "007": "7"} {
		if nano, err := ParseUSD(text); err != nil || FormatUSD(nano) != want {
			t.Errorf("%s: %d, %v", text, nano, err)
		}
	}
	if nano, err := ParseUSD("4503599627.370496"); err != nil || nano != 1<<52*1000 {
		t.Errorf("the largest amount: %d, %v", nano, err)
	}
	for _, text := range []string{"", "-1", "1e3", "0.0000000001", "4503599627.370496001", "4503599628", "1,5", "$1", "١"} {
		if nano, err := ParseUSD(text); !errors.Is(err, ErrPrice) {
			t.Errorf("%q: %d, %v", text, nano, err)
		}
	}
	for nano, want := range map[int64]string{-1_500_000_000: "-1.5", -1: "-0.000000001", NanoUSDMax: "4611686018.427387904"} {
		if got := FormatUSD(nano); got != want {
			t.Errorf("%d: got %s, want %s", nano, got, want)
		}
	}
	for unit, want := range map[Unit]string{Tokens: "1500", USD: "0.0000015", Credits: "0.0000015"} {
		if got := FormatAmount(unit, 1500); got != want {
			t.Errorf("1500 %s are written %s, want %s", unit, got, want)
		}
	}
}

func TestAccountNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		account := Account{Scope: rapid.StringMatching(`[a-z]{1,8}`).Draw(t, "scope"), ID: rapid.StringN(1, 20, 80).Draw(t, "id"), Unit: rapid.SampledFrom([]Unit{Tokens, USD, Credits, Calls}).Draw(t, "unit")}
		got, err := ParseAccounts(account.String())
		if err != nil || len(got) != 1 || got[0] != account {
			t.Fatalf("%+v is written %s and read %+v, %v", account, account, got, err)
		}
		var read Account
		if err := read.UnmarshalText([]byte(account.String())); err != nil || read != account {
			t.Fatalf("%s is read %+v, %v", account, read, err)
		}
	})
	if err := new(Account).UnmarshalText([]byte("user/alice")); !errors.Is(err, ErrAccount) {
		t.Errorf("all of a scope's accounts are one: %v", err)
	}
	if got, err := ParseAccounts("user/alice"); err != nil || !slices.Equal(got, []Account{
		{"user", "alice", Tokens}, {"user", "alice", USD}, {"user", "alice", Credits}, {"user", "alice", Calls},
	}) {
		t.Errorf("got %v, %v", got, err)
	}
	for _, text := range []string{"", "user", "user/", "/alice", "user/alice/euro", "user/a/b/c", "user/%zz"} {
		if got, err := ParseAccounts(text); !errors.Is(err, ErrAccount) {
			t.Errorf("%q: got %v, %v", text, got, err)
		}
	}
}

func FuzzParseAccounts(f *testing.F) {
	f.Add("user/alice/usd")
	f.Add("task/a%2Fb/tokens")
	for _, text := range []string{"", "user/", "user/%zz", "user/a/b/c", "user/%00/usd", "group/é", "user/%2F%2F", "user/a%25b", "user/\xff", "/user/a/"} {
		f.Add(text)
	}
	f.Add("user/a/credits")
	f.Fuzz(func(t *testing.T, text string) {
		accounts, err := ParseAccounts(text)
		for _, account := range accounts {
			again, err := ParseAccounts(account.String())
			if err != nil || len(again) != 1 || again[0] != account {
				t.Fatalf("%q: %v is read %v, %v", text, account, again, err)
			}
		}
		if (err == nil) != (len(accounts) > 0) {
			t.Fatalf("%q: %v, %v", text, accounts, err)
		}
	})
}

func TestFixedWindow(t *testing.T) {
	for length, want := range map[time.Duration]string{
		24 * time.Hour: "fixed/24h", LengthMax: "fixed/744h", 90 * time.Minute: "fixed/1h30m", 10 * time.Minute: "fixed/10m",
		time.Second: "fixed/1s", time.Hour + time.Second: "fixed/1h0m1s", 100 * time.Second: "fixed/1m40s", time.Microsecond: "fixed/1µs",
	} {
		if got := (Fixed{length}).String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	for _, length := range []time.Duration{time.Microsecond, LengthMax} {
		if err := (Fixed{length}).Validate(); err != nil {
			t.Errorf("%v: %v", length, err)
		}
	}
	for _, length := range []time.Duration{0, -time.Hour, LengthMax + time.Microsecond, time.Nanosecond} {
		if err := (Fixed{length}).Validate(); !errors.Is(err, ErrWindow) {
			t.Errorf("%v: %v", length, err)
		}
	}
}
