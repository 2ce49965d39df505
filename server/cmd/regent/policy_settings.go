package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"regent/engine/policy"
	"regent/engine/workshop"
	"regent/ledger"
)

type policySettingsCmd struct {
	ID string `arg:"" optional:"" name:"decision-id" help:"The id of a recorded decision, which is read from the gateway's database. Without it: the newest one."`
}

// Run prints the settings of the policy that decided.
func (c policySettingsCmd) Run(ctx context.Context, e *environment) error {
	id := uuid.Nil
	if c.ID != "" {
		var err error
		if id, err = uuid.Parse(c.ID); err != nil {
			return usageError{fmt.Errorf("%q is no decision id", c.ID)}
		}
	}
	return e.withStore(ctx, func(store ledger.Store) error {
		record, err := decisionRecord(ctx, store, id)
		if err != nil {
			return err
		}
		digest, err := workshop.ActivationOf(record.Body)
		if err != nil {
			return fmt.Errorf("record %d of %s: %w", record.Number, record.Writer, err)
		}
		activation, err := archived(ctx, store, digest)
		if err != nil {
			return err
		}
		return e.document(settingsDocumentOf(activation.Settings()))
	})
}

// settingsDocument is settings as --settings takes them: a list of providers that is empty is written, too, since its absence would leave
// the bundles' own in force.
type settingsDocument struct {
	policy.Settings
	Providers *[]string `json:"providers,omitempty"`
}

func settingsDocumentOf(settings policy.Settings) settingsDocument {
	document := settingsDocument{Settings: settings}
	if settings.Providers != nil {
		document.Providers = &settings.Providers
	}
	return document
}

// newestRecords is how many of the newest records are searched for a decision: each call writes one among some three or four.
const newestRecords = 1000

// decisionRecord is the last record of a decision; of the newest one if there is no id.
func decisionRecord(ctx context.Context, store ledger.Store, id uuid.UUID) (record ledger.Record, err error) {
	var records []ledger.Record
	if id == uuid.Nil {
		records, err = store.Tail(ctx, newestRecords)
	} else {
		records, err = store.CallRecords(ctx, id)
	}
	if err != nil {
		return record, err
	}
	for _, record := range slices.Backward(records) {
		if record.Kind == ledger.DecisionRecord {
			return record, nil
		}
	}
	if id == uuid.Nil {
		return record, errors.New("no decision is among the newest records: name one by its id")
	}
	return record, fmt.Errorf("no record of decision %s", id)
}
